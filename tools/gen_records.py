#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Generates from src/format/records.toml: the C++ header, the page's TypeScript types and the
reference page of the records.

Usage: gen_records.py SCHEMA --header OUT | --typescript OUT | --page OUT | --check-page PAGE
Needs only Python 3.11 (tomllib). `--check-page` exits 1 when the committed page is not what the
schema gives.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import tomllib

CPP = {
    "i32": ("std::int32_t", "0"),
    "i64": ("std::int64_t", "0"),
    "u32": ("std::uint32_t", "0"),
    "u64": ("std::uint64_t", "0"),
    "f64": ("double", "0"),
    "bool": ("bool", "false"),
    "str": ("std::string_view", "{}"),
}

# Numbers of a column without a bound.
ALL = (-(1 << 63), (1 << 63) - 1)

TYPESCRIPT = {"bool": "boolean", "str": "string"}


def load(path: Path) -> dict[str, Any]:
    schema = tomllib.loads(path.read_text())
    for table in schema["table"]:
        table["all"] = schema["common"] + table["columns"]
        ids = [c["id"] for c in table["all"]]
        names = [c["name"] for c in table["all"]]
        if len(set(ids)) != len(ids) or len(set(names)) != len(names):
            sys.exit(f"{path}: table {table['name']}: a column id or name stands twice")
        for column in table["all"]:
            if column["type"] not in CPP or not 0 < column["id"] < 256:
                sys.exit(f"{path}: {table['name']}.{column['name']}: unknown type or id over 255")
            bound = column.get("bound")
            if bound is not None and (
                bound not in schema["bounds"] or column["type"] not in ("i32", "i64", "u32", "u64")
            ):
                sys.exit(f"{path}: {table['name']}.{column['name']}: no bound '{bound}' for its type")
            if bound is None and column["type"] == "u64":
                sys.exit(f"{path}: {table['name']}.{column['name']}: a u64 needs a bound")
    return schema


def quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def limits(schema: dict[str, Any], column: dict[str, Any]) -> tuple[str, str]:
    """Its smallest and its largest value, as C++ writes them."""
    bound = column.get("bound")
    least, most = ALL
    if bound is not None:
        least, most = schema["bounds"][bound]["least"], schema["bounds"][bound]["most"]
    # The smallest of all has no literal.
    return ("INT64_MIN" if least == ALL[0] else str(least), "INT64_MAX" if most == ALL[1] else str(most))


def header(schema: dict[str, Any]) -> str:
    tables = schema["table"]
    out = [
        "// Generated from src/format/records.toml by tools/gen_records.py. Do not edit.",
        "#pragma once",
        "#include <array>",
        "#include <cstdint>",
        "#include <string_view>",
        "#include <vector>",
        "",
        '#include "format/column.h"',
        "",
        "namespace telltale::format {",
        "",
        f"inline constexpr std::uint32_t kRecordSchemaVersion = {schema['version']};",
        "",
        "/// What the numbers of columns can be (records.toml).",
        *(
            f"inline constexpr Bound k{name.capitalize()}Bound{{{bound['least']}, {bound['most']}}};"
            for name, bound in schema["bounds"].items()
        ),
        "",
        "enum class TableId : std::uint8_t {",
    ]
    out += [f"  k{t['name'].capitalize()} = {t['id']}," for t in tables]
    out += ["};", ""]
    for t in tables:
        out += [f"/// {t['doc']}", f"struct {t['row']}Row {{"]
        out += [f"  static constexpr TableId kTable = TableId::k{t['name'].capitalize()};"]
        for c in t["all"]:
            cpp, zero = CPP[c["type"]]
            unit = f" [{c['unit']}]" if c["unit"] else ""
            out += [f"  /// {c['doc']}{unit}", f"  {cpp} {c['name']} = {zero};"]
        out += ["};", ""]
        out += [f"inline constexpr std::array<ColumnDesc, {len(t['all'])}> k{t['row']}Columns{{{{"]
        for c in t["all"]:
            least, most = limits(schema, c)
            out += [
                f"    {{{c['id']}, ColumnType::k{c['type'].capitalize()}, {quote(c['name'])}, "
                f"{quote(c['unit'])},\n     {quote(c['doc'])},\n     {least}, {most}}},"
            ]
        out += ["}};", ""]
        out += [
            "/// Calls f(descriptor, pointer to member) for each column in order.",
            "template <class Row, class F>",
            f"  requires std::is_same_v<Row, {t['row']}Row>",
            "void ForEachColumn(F&& f) {",
        ]
        for i, c in enumerate(t["all"]):
            out += [f"  f(k{t['row']}Columns[{i}], &{t['row']}Row::{c['name']});"]
        out += ["}", ""]
    out += [f"inline constexpr std::array<TableDesc, {len(tables)}> kTables{{{{"]
    for t in tables:
        out += [
            f"    {{TableId::k{t['name'].capitalize()}, {quote(t['name'])}, {quote(t['doc'])}, "
            f"k{t['row']}Columns}},"
        ]
    out += ["}};", ""]
    out += [
        "/// Rows of every table; what a batch holds. Strings point into the owner's memory.",
        "struct Rows {",
    ]
    out += [f"  std::vector<{t['row']}Row> {t['name']};" for t in tables]
    out += ["};", ""]
    out += [
        "/// Calls f(rows.TABLE) for each table in the order of its id; Rows may be const.",
        "template <class AnyRows, class F>",
        "  requires std::is_same_v<std::remove_const_t<AnyRows>, Rows>",
        "void ForEachTable(AnyRows& rows, F&& f) {",
    ]
    out += [f"  f(rows.{t['name']});" for t in tables]
    out += ["}", "", "}  // namespace telltale::format", ""]
    return "\n".join(out)


def typescript(schema: dict[str, Any]) -> str:
    """Numbers are doubles in a browser: sequence numbers and times lose their last digits there."""
    out = [
        "// Generated from src/format/records.toml by tools/gen_records.py. Do not edit.",
        "",
        f"export const RECORD_SCHEMA_VERSION = {schema['version']};",
    ]
    for t in schema["table"]:
        out += ["", f"/** {t['doc']} */", f"export interface {t['row']}Row {{"]
        for c in t["all"]:
            unit = f" [{c['unit']}]" if c["unit"] else ""
            out += [f"  /** {c['doc']}{unit} */"]
            out += [f"  {c['name']}: {TYPESCRIPT.get(c['type'], 'number')};"]
        out += ["}"]
    return "\n".join(out) + "\n"


def page(schema: dict[str, Any]) -> str:
    out = [
        "# Records",
        "",
        "<!-- Generated from src/format/records.toml by tools/gen_records.py. Do not edit. -->",
        "",
        f"Schema version {schema['version']}. The same tables, columns and types in the journal, in "
        "the Parquet segments and in every reader. Table and column ids are permanent; columns are "
        "only added; a reader skips what it does not know and takes zero for what it misses; a type "
        "or unit never changes.",
        "",
        "## Columns of every table",
        "",
        *rows_of(schema["common"]),
        "",
        "## Bounds",
        "",
        "A row with a number outside its column's bound is damaged or forged. The agent does not store it "
        "and counts it in `probe.malformed`; a reader leaves it out and counts it as a row with an "
        "impossible number. A column without a bound takes every value of its type.",
        "",
        "| bound | values |",
        "|---|---|",
        *(f"| {name} | {bound['doc']} |" for name, bound in schema["bounds"].items()),
    ]
    for t in schema["table"]:
        out += ["", f"## {t['name']} (table {t['id']})", "", t["doc"], "", *rows_of(t["columns"])]
    return "\n".join(out) + "\n"


def rows_of(columns: list[dict[str, Any]]) -> list[str]:
    out = ["| id | column | type | unit | bound | meaning |", "|--:|---|---|---|---|---|"]
    for c in columns:
        out.append(
            f"| {c['id']} | `{c['name']}` | {c['type']} | {c['unit']} | {c.get('bound', '')} | {c['doc']} |"
        )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("schema", type=Path)
    parser.add_argument("--header", type=Path)
    parser.add_argument("--typescript", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--check-page", type=Path)
    args = parser.parse_args()
    schema = load(args.schema)
    if args.header:
        args.header.parent.mkdir(parents=True, exist_ok=True)
        args.header.write_text(header(schema))
    if args.typescript:
        args.typescript.write_text(typescript(schema))
    if args.page:
        args.page.write_text(page(schema))
    if args.check_page and args.check_page.read_text() != page(schema):
        sys.exit(
            f"{args.check_page} is not what {args.schema} gives: run tools/gen_records.py "
            f"{args.schema} --page {args.check_page}"
        )


if __name__ == "__main__":
    main()

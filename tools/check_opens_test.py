# SPDX-License-Identifier: Apache-2.0
"""The check of opens finds each way to a file that is not the helper's, and nothing else."""

import pathlib
import unittest

from tree_check import run_on

CHECK = pathlib.Path(__file__).parent / "check_opens"


class CheckOpens(unittest.TestCase):
    def run_on(self, files: dict[str, str]) -> tuple[int, str]:
        return run_on(CHECK, files)

    def test_the_helper_names_and_comments_pass(self) -> None:
        code, out = self.run_on(
            {
                "src/store/a.cc": """
                    #include <fstream>
                    // ::open(path) would follow a link; so would std::filesystem::exists(path).
                    const auto fd = run_files::OpenToRead(path);
                    const std::filesystem::path whole = fs::absolute(run) / "unlink(x)";
                    std::vector<int> open(nodes);
                    acceptor_.open(endpoint);
                    spans->open(1);
                    list.remove(1); ::fstatvfs(fd, &info); std::erase(v, 1);
                    Unlink(path); run_files::Rename(a, b);
                """,
                "src/store/a_test.cc": "std::ofstream(path) << 1;",
            }
        )
        self.assertEqual((code, out), (0, ""))

    def test_every_other_way_is_found_with_its_line(self) -> None:
        ways = {
            "::open(p, O_RDONLY)": "open",
            "return open(p, O_RDONLY)": "open",
            "if (open(p, 0) < 0)": "open",
            "::openat(at, p, O_RDONLY)": "openat",
            "std::fopen(p, mode)": "fopen",
            "std::ifstream in(p)": "ifstream",
            "std::ofstream(p) << 1": "ofstream",
            "::opendir(p)": "opendir",
            "std::filesystem::exists(p)": "exists",
            "fs::create_directories(p)": "create_directories",
            "fs::directory_iterator at(p)": "directory_iterator",
            "std::filesystem::copy(p, q)": "copy",
            "std::filesystem::remove_all(p)": "remove_all",
            "::rename(p, q)": "rename",
            "::unlink(p)": "unlink",
            "::symlink(p, q)": "symlink",
            "::mkdir(p, 0700)": "mkdir",
            "::stat(p, &info)": "stat",
            "::statvfs(p, &info)": "statvfs",
            "::statfs(p, &info)": "statfs",
            "std::filesystem::space(p)": "space",
            "::remove(p)": "remove",
            "std::remove(p)": "remove",
            "::chown(p, 0, 0)": "chown",
            "::fchownat(at, p, 0, 0, 0)": "fchownat",
            "::chdir(p)": "chdir",
            "::bind(fd, address, size)": "bind",
            "::connect(fd, address, size)": "connect",
            "parquet::ParquetFileReader::OpenFile(p)": "OpenFile",
        }
        for way, name in ways.items():
            with self.subTest(way):
                code, out = self.run_on({"src/store/a.cc": f"int a;\n{way};\n"})
                self.assertEqual(code, 1)
                self.assertIn(f"src/store/a.cc:2: {name}: ", out)

    def test_what_the_table_allows_is_for_that_file_alone(self) -> None:
        self.assertEqual(self.run_on({"src/cli/output.cc": "::open(null, mode);"}), (0, ""))
        code, out = self.run_on({"src/cli/output.cc": "::open(null, mode); ::unlink(p);"})
        self.assertEqual(code, 1)
        self.assertIn("src/cli/output.cc:1: unlink", out)

    def test_the_table_holds_nothing_that_is_not_done(self) -> None:
        code, out = self.run_on({"src/cli/output.cc": "int a;"})
        self.assertEqual(code, 1)
        self.assertIn("src/cli/output.cc does not call open", out)

    def test_an_empty_tree_is_an_error(self) -> None:
        self.assertEqual(self.run_on({})[0], 1)


if __name__ == "__main__":
    unittest.main()

// SPDX-License-Identifier: Apache-2.0
// One importer a format, and the table of them. A new one is a folder with its reader, a line in
// importers.cc and its page in docs/formats/; the frame (import.h) does the rest: the child process
// with its limits, the run directory, the ledger, what goes away when it fails.
#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "interchange/input_file.h"
#include "interchange/trace_sink.h"

namespace telltale::interchange {

/// A file or folder that the user named, as an importer is asked about it.
struct ImportFile {
  std::filesystem::path path;
  std::string name;  ///< Its last part; the window of its slices.
  bool folder = false;
  std::uint64_t bytes = 0;
  bool gzip = false;
  std::string head;  ///< The first 64 KiB, inflated where gzip; empty of a folder.
  int held = -1;     ///< As of InputFile.

  InputFile input() const { return {path, held}; }
};

struct ImportLimits {
  std::uint64_t memory_bytes = 2ULL << 30;     ///< Address space of the child.
  std::uint64_t inflated_bytes = 64ULL << 30;  ///< Of one file.
  std::uint64_t events = 200'000'000;          ///< Of one file.
};

struct Importer {
  std::string_view name;     ///< For --format, in run.json and messages.
  std::string_view summary;  ///< A line for the help.
  /// Whether the content is of this format. The first in the table that says so has it.
  bool (*detect)(const ImportFile& file);
  /// Reads all files of one call. What is damaged is counted and left out. kUnusable: nothing in it
  /// could be used; kLimit; kIo. Never throws anything but std::bad_alloc.
  Status (*import)(std::span<const ImportFile> files, const ImportLimits& limits, TraceSink* sink);
  /// It opens files by their paths: it is not for one that is held open.
  bool by_path = false;
};

std::span<const Importer> Importers();
/// nullptr: there is none of that name.
const Importer* FindImporter(std::string_view name);
/// nullptr: none knows it.
const Importer* DetectImporter(const ImportFile& file);

/// kUsage: a FIFO, a device; kUnusable: no such file, empty; kIo: it cannot be read.
Result<ImportFile> LookAtFile(const InputFile& named);

}  // namespace telltale::interchange

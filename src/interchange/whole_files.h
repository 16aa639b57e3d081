// SPDX-License-Identifier: Apache-2.0
// The importers of formats whose files are read whole, one file a rank: their glue to the table of
// importers.
#pragma once
#include <span>

#include "interchange/importer.h"

namespace telltale::interchange {

bool DetectXSpace(const ImportFile& file);
Status ImportXSpaceFiles(std::span<const ImportFile> files, const ImportLimits& limits,
                         TraceSink* sink);
bool DetectTfprof(const ImportFile& file);
Status ImportTfprofFiles(std::span<const ImportFile> files, const ImportLimits& limits,
                         TraceSink* sink);
bool DetectStepStats(const ImportFile& file);
Status ImportStepStatsFiles(std::span<const ImportFile> files, const ImportLimits& limits,
                            TraceSink* sink);
bool DetectPerfetto(const ImportFile& file);
Status ImportPerfettoFiles(std::span<const ImportFile> files, const ImportLimits& limits,
                           TraceSink* sink);
bool DetectPstats(const ImportFile& file);
Status ImportPstatsFiles(std::span<const ImportFile> files, const ImportLimits& limits,
                         TraceSink* sink);
bool DetectNsys(const ImportFile& file);
Status ImportNsysFiles(std::span<const ImportFile> files, const ImportLimits& limits,
                       TraceSink* sink);

/// The most that a file may have (inflated), so that it and what is made of it fit into the memory.
std::uint64_t MostBytesOfFile(const ImportLimits& limits);

}  // namespace telltale::interchange

// SPDX-License-Identifier: Apache-2.0
#include "stored_run.h"

#include <system_error>

#include "fuzz.h"
#include "store/folder.h"
#include "store/journal_format.h"
#include "store/journal_writer.h"
#include "store/run_info.h"

namespace telltale::fuzz {

namespace fs = std::filesystem;

fs::path StoredRun(std::string_view batch, const std::string& name) {
  const fs::path run = ScratchRoot() / name;
  std::error_code ignored;
  fs::remove_all(run, ignored);
  fs::create_directories(run);
  store::RunInfo info{.id = name, .name = name};
  info.attempts.push_back({.number = 1, .start_ns = 1, .end_ns = 2, .exit_code = 0});
  info.finished = true;
  Require(store::WriteRunInfo(run, info).ok());
  fs::create_directory(run / "agent-fuzz");
  store::JournalHeader header;
  header.writer = "agent-fuzz";
  header.number = 1;
  header.created_ns = 1;
  header.next_seq = store::FirstSeqs();
  store::EndRecord end;
  end.next_seq = store::FirstSeqs();
  const std::string records[] = {store::Encode(header), std::string(batch), store::Encode(end)};
  bool no_space = false;
  Require(store::JournalWriter::Create(run / "agent-fuzz" / store::JournalFileName(1), records,
                                       &no_space)
              .ok());
  return run;
}

}  // namespace telltale::fuzz

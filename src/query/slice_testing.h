// SPDX-License-Identifier: Apache-2.0
// A run of slices that a test makes by hand.
#pragma once
#include <gtest/gtest.h>

#include <deque>
#include <filesystem>
#include <string>
#include <utility>

#include "query/slice_order.h"
#include "store/store_testing.h"

namespace telltale::query {

class SliceRun {
 public:
  /// A slice of thread 1, to be changed until Write(); times in ns.
  format::SliceRow& Host(std::string_view category, std::string_view name, std::int64_t begin_ns,
                         std::int64_t duration_ns) {
    format::SliceRow row;
    row.time_ns = begin_ns;
    row.duration_ns = duration_ns;
    row.name = Text(name);
    row.category = Text(category);
    row.kind = row.category;
    row.step = -1;
    row.pid = 100;
    row.tid = 1;
    row.lane = "thread 1 (python)";
    row.device = -1;
    row.stream = -1;
    row.attempt = 1;
    row.window = "trace.json";
    return rows_.slices.emplace_back(row);
  }
  /// A kernel on stream 7 of device 0.
  format::SliceRow& Device(std::string_view name, std::int64_t begin_ns, std::int64_t duration_ns) {
    format::SliceRow& row = Host("kernel", name, begin_ns, duration_ns);
    row.tid = 0;
    row.lane = "stream 7";
    row.device = 0;
    row.stream = 7;
    return row;
  }
  std::string_view Text(std::string_view text) { return texts_.emplace_back(text); }
  format::Rows& rows() { return rows_; }

  void Write() {
    store::MakeRun(path());
    for (format::SliceRow& row : rows_.slices) row.ord_ns = EndOf(row);
    auto opened = store::Writer::Open(path() / "import-0", "import-0");
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    format::Batch batch;
    batch.rows = std::move(rows_);
    batch.watermark_ns = 1LL << 60;
    ASSERT_TRUE((*opened)->Append(std::move(batch)).ok());
    ASSERT_TRUE((*opened)->Close(true).ok());
  }
  std::filesystem::path path() const { return folder_.path() / "run"; }

 private:
  store::TempFolder folder_;
  format::Rows rows_;
  std::deque<std::string> texts_;
};

}  // namespace telltale::query

// SPDX-License-Identifier: Apache-2.0
#include "store/tensor_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/json.h"
#include "format/wire.h"
#include "store/store_testing.h"
#include "store/verify.h"

namespace telltale::store {
namespace {

using nlohmann::json;

std::string Slurp(const std::filesystem::path& path) { return ReadWholeFile(path).value(); }

std::span<const std::byte> BytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

template <class T>
std::string Values(std::initializer_list<T> values) {
  std::string bytes;
  for (const T value : values) format::Put(&bytes, value);
  return bytes;
}

format::TensorRow Tensor(std::string_view name, std::string_view dtype, std::string_view shape,
                         std::int64_t step = 3) {
  return {.ord_ns = 10,
          .time_ns = 10,
          .name = name,
          .collection = "weights",
          .dtype = dtype,
          .shape = shape,
          .step = step,
          .mode = "TRAIN",
          .attempt = 1,
          .pid = 7};
}

/// A run with one agent that writes tensor files, as the product does.
class TensorFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    MakeRun(run_);
    writer_ = Writer::Open(folder_, "agent-a").value();
  }

  std::unique_ptr<TensorFileWriter> Begin(std::uint64_t number = 1,
                                          std::uint64_t header_bytes = 192) {
    bool no_space = false;
    auto file = TensorFileWriter::Create(folder_, number, &no_space, header_bytes);
    EXPECT_TRUE(file.ok()) << file.status().message();
    return file.ok() ? std::move(file).value() : nullptr;
  }
  /// Appends the values and journals their row.
  void Store(TensorFileWriter* file, format::TensorRow row, std::string_view values) {
    const auto placed = file->Append(row, BytesOf(values));
    ASSERT_TRUE(placed.ok()) << placed.status().message();
    Journal(*file, row, *placed);
  }
  void Journal(const TensorFileWriter& file, format::TensorRow row, const Placed& placed) {
    row.file = file.file();
    row.offset = placed.offset;
    row.bytes = placed.bytes;
    row.digest = placed.digest;
    format::Batch batch;
    batch.rows.tensors.push_back(row);
    ASSERT_TRUE(writer_->Append(batch).ok());
  }
  void Close(TensorFileWriter* file) {
    const auto placed = file->WriteHeader();
    ASSERT_TRUE(placed.ok()) << placed.status().message();
    Journal(*file, {.name = kHeaderRow, .attempt = 1}, *placed);
    ASSERT_TRUE(SealTensorFile(file->fd()->get(), folder_, file->file()).ok());
  }
  /// The file of docs/formats/tensors.md.
  void WriteExample() {
    const auto file = Begin();
    Store(file.get(), Tensor("fc.bias", "F32", "[2]"), Values<float>({0.5F, -1.0F}));
    Store(file.get(), Tensor("seen", "I64", "[]"), Values<std::int64_t>({7}));
    Close(file.get());
  }

  std::vector<Problem> Problems() const {
    const auto report = Verify(run_);
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? report->problems : std::vector<Problem>{};
  }
  std::vector<format::TensorRow> Rows() {
    all_ = ReadEverything(run_);
    return all_->rows.tensors;
  }
  /// The header's JSON, as any reader of safetensors takes it.
  json Header(std::string_view file) const {
    const std::string bytes = Slurp(folder_ / file);
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    EXPECT_LE(8 + length, bytes.size());
    return ParseJson(bytes.substr(8, length));
  }

  TempFolder temp_;
  std::filesystem::path run_ = temp_.path() / "run";
  std::filesystem::path folder_ = run_ / "agent-a";
  std::unique_ptr<Writer> writer_;
  std::unique_ptr<Everything> all_;
};

/// The lines "offset  hex bytes  | text" of the page's example.
std::string PageExample(const std::string& page) {
  std::size_t at = page.find("```", page.find("## Worked example"));
  at = page.find('\n', at) + 1;
  std::istringstream lines(page.substr(at, page.find("```", at) - at));
  std::string bytes;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line.substr(0, line.find('|')));
    std::string word;
    words >> word;  // The offset.
    while (words >> word) bytes += static_cast<char>(std::stoi(word, nullptr, 16));
  }
  return bytes;
}

TEST_F(TensorFileTest, ThePageShowsWhatIsWritten) {
  WriteExample();
  const std::string page =
      Slurp(std::filesystem::path(TELLTALE_SOURCE_DIR) / "docs/formats/tensors.md");
  EXPECT_EQ(Slurp(folder_ / "tensors/00000001.safetensors"), PageExample(page));
  for (const format::TensorRow& row : Rows()) {
    EXPECT_NE(page.find(std::string(row.digest)), std::string::npos) << row.name << row.digest;
  }
  EXPECT_EQ(Rows().size(), 3U);
}

TEST_F(TensorFileTest, TheHeaderNamesEveryTensorOnceAndLeavesNoGap) {
  const auto file = Begin(1, 4096);
  const std::string pair = Values<double>({1, -2});
  Store(file.get(), Tensor("a", "F64", "[2]"), pair);
  Store(file.get(), Tensor("a", "F64", "[2]"), pair);  // A module that ran twice.
  Store(file.get(), Tensor("a#2", "F64", "[2]"), pair);
  Store(file.get(), Tensor("a", "F64", "[2]"), pair);
  Store(file.get(), Tensor("empty", "F32", "[0,3]"), "");
  Store(file.get(), Tensor("z", "C64", "[1]"), Values<float>({1, 2}));
  Store(file.get(), Tensor("z", "C128", "[]", 4), Values<double>({1, 2}));
  Store(file.get(), Tensor("\"\\\n\xf0\x9f\x98\x80", "U8", "[1]"), "x");
  Close(file.get());
  const json header = Header(file->file());
  ASSERT_TRUE(header.is_object());
  EXPECT_EQ(header["__metadata__"].size(), 1U);
  EXPECT_EQ(header["__metadata__"]["telltale"], "1");
  EXPECT_EQ(header.size(), 9U);
  for (const char* key : {"TRAIN/3/0/a", "TRAIN/3/0/a#2", "TRAIN/3/0/a#2#2", "TRAIN/3/0/a#3",
                          "TRAIN/3/0/empty", "TRAIN/3/0/\"\\\n\xf0\x9f\x98\x80"}) {
    EXPECT_TRUE(header.contains(key)) << key;
  }
  EXPECT_EQ(header["TRAIN/3/0/z"]["dtype"], "F32");
  EXPECT_EQ(header["TRAIN/3/0/z"]["shape"], json::array({1, 2}));
  EXPECT_EQ(header["TRAIN/4/0/z"]["dtype"], "F64");
  EXPECT_EQ(header["TRAIN/4/0/z"]["shape"], json::array({2}));
  // As the public readers check it: one behind the other, all of the file.
  std::map<std::pair<std::uint64_t, std::uint64_t>, int> places;
  for (const auto& [key, entry] : header.items()) {
    if (key == "__metadata__") continue;
    ++places[{entry["data_offsets"][0].get<std::uint64_t>(),
              entry["data_offsets"][1].get<std::uint64_t>()}];
  }
  std::uint64_t next = 0;
  for (const auto& [place, times] : places) {
    EXPECT_EQ(place.first, next);
    EXPECT_EQ(times, 1);
    next = place.second;
  }
  EXPECT_EQ(4096 + next, std::filesystem::file_size(folder_ / file->file()));
  EXPECT_TRUE(Problems().size() == 1) << "no end record yet, and nothing else";
}

TEST_F(TensorFileTest, AFullHeaderTakesNoMoreAndStaysWhole) {
  const auto file = Begin(1, 192);
  Store(file.get(), Tensor("a", "U8", "[1]"), "x");
  const std::uint64_t size = file->size();
  const std::string long_name(100, 'n');
  const auto refused = file->Append(Tensor(long_name, "U8", "[1]"), BytesOf("y"));
  EXPECT_EQ(refused.status().code(), Code::kLimit);
  EXPECT_FALSE(file->HasRoom(Tensor(long_name, "U8", "[1]")));
  EXPECT_EQ(file->size(), size);
  Close(file.get());
  ASSERT_TRUE(writer_->Close(true).ok());
  EXPECT_TRUE(Problems().empty());
  EXPECT_EQ(Header(file->file()).size(), 2U);
}

TEST_F(TensorFileTest, IsReadWhileItIsWrittenAndAfterwards) {
  const auto file = Begin();
  Store(file.get(), Tensor("w", "F32", "[2]"), Values<float>({0.5F, -1.0F}));
  const format::TensorRow row = Rows().at(0);
  const auto live = OpenTensor(run_, "agent-a", row);
  ASSERT_TRUE(live.ok()) << live.status().message();
  EXPECT_TRUE(live->file->part());
  EXPECT_EQ(DigestText(live->values), row.digest);
  Close(file.get());
  const auto later = OpenTensor(run_, "agent-a", row);
  ASSERT_TRUE(later.ok()) << later.status().message();
  EXPECT_FALSE(later->file->part());
  EXPECT_EQ(DigestText(later->values), row.digest);
  // What was mapped stays as it was.
  EXPECT_EQ(DigestText(live->values), row.digest);
}

TEST_F(TensorFileTest, RowsThatMakeNoSenseAreRefused) {
  WriteExample();
  const format::TensorRow row = Rows().at(0);
  const auto code = [&](auto change) {
    format::TensorRow changed = row;
    change(&changed);
    return OpenTensor(run_, "agent-a", changed).status().code();
  };
  EXPECT_EQ(code([](auto*) {}), Code::kOk);
  EXPECT_EQ(code([](auto* r) { r->file = ""; }), Code::kUsage);
  EXPECT_EQ(code([](auto* r) { r->offset = 1 << 20; }), Code::kPartial);
  EXPECT_EQ(code([](auto* r) { r->offset = ~0ULL; }), Code::kPartial);
  EXPECT_EQ(code([](auto* r) { r->bytes = 4; }), Code::kUnusable);
  EXPECT_EQ(code([](auto* r) { r->shape = "[-2]"; }), Code::kUnusable);
  EXPECT_EQ(code([](auto* r) { r->shape = "2"; }), Code::kUnusable);
  EXPECT_EQ(code([](auto* r) { r->shape = "[4294967296,4294967296,4]"; }), Code::kUnusable);
  EXPECT_EQ(code([](auto* r) { r->dtype = "F31"; }), Code::kUnusable);
  for (const char* file :
       {"tensors/00000009.safetensors", "../run.json", "tensors/../lock.safetensors",
        "tensors/.safetensors/x", "/etc/passwd", "tensors/"}) {
    EXPECT_EQ(code([&](auto* r) { r->file = file; }), Code::kUnusable) << file;
  }
  EXPECT_EQ(OpenTensor(run_, "../run/agent-a", row).status().code(), Code::kUnusable);
}

TEST_F(TensorFileTest, EveryFlippedBitIsFoundHeaderAndPaddingIncluded) {
  WriteExample();
  ASSERT_TRUE(writer_->Close(true).ok());
  ASSERT_TRUE(Problems().empty());
  const std::filesystem::path path = folder_ / "tensors/00000001.safetensors";
  const std::string whole = Slurp(path);
  ASSERT_EQ(whole.size(), 208U);
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    const char hurt = static_cast<char>(whole[bit / 8] ^ (1 << (bit % 8)));
    ASSERT_EQ(::pwrite(fd.get(), &hurt, 1, static_cast<off_t>(bit / 8)), 1);
    const auto problems = Problems();
    ASSERT_EQ(problems.size(), 1U) << "bit " << bit;
    ASSERT_EQ(problems[0].file, "agent-a/tensors/00000001.safetensors");
    ASSERT_EQ(::pwrite(fd.get(), &whole[bit / 8], 1, static_cast<off_t>(bit / 8)), 1);
  }
  for (std::size_t n = whole.size(); n-- > 0;) {
    std::filesystem::resize_file(path, n);
    ASSERT_FALSE(Problems().empty()) << "cut to " << n;
  }
  std::ofstream(path, std::ios::binary | std::ios::trunc) << whole << '\0';
  ASSERT_EQ(Problems().size(), 1U) << "a byte more";
  std::filesystem::remove(path);
  ASSERT_EQ(Problems().size(), 1U);
  EXPECT_NE(Problems()[0].what.find("is missing"), std::string::npos);
}

TEST_F(TensorFileTest, AFlippedBitOfAnUnfinishedFileIsFoundToo) {
  const auto file = Begin();
  Store(file.get(), Tensor("w", "F32", "[1]"), Values<float>({0.5F}));
  // Written, but the row did not come to the journal: nobody's.
  ASSERT_TRUE(file->Append(Tensor("x", "F32", "[1]"), BytesOf("abcd")).ok());
  ASSERT_TRUE(writer_->Close(true).ok());
  const auto report = Verify(run_);
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->problems.empty()) << report->problems[0].what;
  ASSERT_EQ(report->notes.size(), 1U);
  EXPECT_NE(report->notes[0].find("00000001.safetensors.part"), std::string::npos);
  const UniqueFd fd(
      ::open((folder_ / "tensors/00000001.safetensors.part").c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_EQ(::pwrite(fd.get(), "!", 1, 193), 1);
  ASSERT_EQ(Problems().size(), 1U);
  EXPECT_EQ(Problems()[0].file, "agent-a/tensors/00000001.safetensors.part");
}

TEST_F(TensorFileTest, WhatADeadWriterLeftIsFinishedFromItsRows) {
  auto file = Begin(1, 512);
  Store(file.get(), Tensor("none", "F32", "[0]"), "");
  Store(file.get(), Tensor("w", "F32", "[1]"), Values<float>({0.5F}));
  Store(file.get(), Tensor("w", "F32", "[1]"), Values<float>({1.5F}));
  ASSERT_TRUE(file->Append(Tensor("lost", "F32", "[1]"), BytesOf("abcd")).ok());
  const std::string name = file->file();
  file.reset();  // Without a header: a kill.
  const auto index = ReadTensorIndex(folder_, {name});
  ASSERT_TRUE(index.ok());
  ASSERT_EQ((*index)->rows.at(name).size(), 3U);
  const auto done = FinishPart(folder_, name, (*index)->rows.at(name));
  ASSERT_TRUE(done.ok()) << done.status().message();
  ASSERT_TRUE(done->header);
  EXPECT_EQ(std::filesystem::file_size(folder_ / (name + ".part")), 520U);

  // Another kill before the header's row is in the journal: the same again.
  const auto again = FinishPart(folder_, name, (*index)->rows.at(name));
  ASSERT_TRUE(again.ok() && again->header);
  EXPECT_EQ(again->header->digest, done->header->digest);
  format::Batch batch;
  batch.rows.tensors.push_back({.name = kHeaderRow,
                                .file = name,
                                .bytes = done->header->bytes,
                                .digest = done->header->digest});
  ASSERT_TRUE(writer_->Append(batch).ok());
  // And one before the file got its name.
  const auto with_header = ReadTensorIndex(folder_, {name});
  const auto last = FinishPart(folder_, name, (*with_header)->rows.at(name));
  ASSERT_TRUE(last.ok()) << last.status().message();
  EXPECT_FALSE(last->header);
  ASSERT_TRUE(SealTensorFile(last->fd->get(), folder_, name).ok());
  ASSERT_TRUE(writer_->Close(true).ok());
  EXPECT_TRUE(Problems().empty()) << Problems()[0].what;
  const json header = Header(name);
  EXPECT_EQ(header.size(), 4U);
  EXPECT_EQ(header["TRAIN/3/0/w#2"]["data_offsets"], json::array({4, 8}));
}

TEST_F(TensorFileTest, AFileThatNoRowNamesIsRemovedAndAStrangeOneLeftAlone) {
  auto file = Begin(1);
  ASSERT_TRUE(file->Append(Tensor("lost", "F32", "[1]"), BytesOf("abcd")).ok());
  const auto removed = FinishPart(folder_, file->file(), {});
  ASSERT_TRUE(removed.ok());
  EXPECT_EQ(removed->fd, nullptr);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "tensors/00000001.safetensors.part"));

  file = Begin(2);
  Store(file.get(), Tensor("w", "F32", "[1]"), Values<float>({0.5F}));
  const std::string name = file->file();
  std::filesystem::resize_file(folder_ / (name + ".part"), 194);
  const auto index = ReadTensorIndex(folder_, {name});
  EXPECT_EQ(FinishPart(folder_, name, (*index)->rows.at(name)).status().code(), Code::kUnusable);
  EXPECT_EQ(std::filesystem::file_size(folder_ / (name + ".part")), 194U);
}

TEST_F(TensorFileTest, WhereTheIndexIsDamagedNothingIsTakenForNobodys) {
  const auto file = Begin();
  Store(file.get(), Tensor("w", "F32", "[1]"), Values<float>({0.5F}));
  ASSERT_TRUE(writer_->Close(true).ok());
  EXPECT_TRUE(ReadTensorIndex(folder_, {file->file()}).ok());
  const std::filesystem::path segment = folder_ / "tensors-000000000001-000000000001.parquet";
  ASSERT_TRUE(std::filesystem::exists(segment));
  std::filesystem::resize_file(segment, 100);
  EXPECT_EQ(ReadTensorIndex(folder_, {file->file()}).status().code(), Code::kPartial);
}

TEST_F(TensorFileTest, AWriteThatFailsLeavesTheFileAsItWas) {
  const auto file = Begin();
  Store(file.get(), Tensor("a", "U8", "[1]"), "x");
  // From now on its descriptor is of a disk without room.
  const UniqueFd full(::open("/dev/full", O_RDWR | O_CLOEXEC));
  const UniqueFd kept(::dup(file->fd()->get()));
  ASSERT_EQ(::dup3(full.get(), file->fd()->get(), O_CLOEXEC), file->fd()->get());
  const auto refused = file->Append(Tensor("b", "U8", "[1]"), BytesOf("y"));
  EXPECT_EQ(refused.status().code(), Code::kIo);
  EXPECT_TRUE(file->no_space());
  ASSERT_EQ(::dup3(kept.get(), file->fd()->get(), O_CLOEXEC), file->fd()->get());
  Store(file.get(), Tensor("b", "U8", "[1]"), "y");
  Close(file.get());
  ASSERT_TRUE(writer_->Close(true).ok());
  EXPECT_TRUE(Problems().empty()) << Problems()[0].what;
  EXPECT_EQ(Slurp(folder_ / file->file()).substr(192), "xy");
}

TEST(TensorFileNameTest, OfOurFilesAlone) {
  EXPECT_EQ(TensorFileName(7), "tensors/00000007.safetensors");
  EXPECT_EQ(ParseTensorFileName("00000007.safetensors")->number, 7U);
  EXPECT_FALSE(ParseTensorFileName("00000007.safetensors")->part);
  EXPECT_TRUE(ParseTensorFileName("123456789.safetensors.part")->part);
  for (const char* name : {"7.safetensors", "00000000.safetensors", "0000000x.safetensors",
                           "00000007.part", ".part", ""}) {
    EXPECT_FALSE(ParseTensorFileName(name)) << name;
  }
}

TEST(TensorShapeTest, ThereAndBackAndWhatIsNone) {
  const std::vector<std::int64_t> shape = {2, 0, 3};
  EXPECT_EQ(ShapeText(shape), "[2,0,3]");
  EXPECT_EQ(ShapeText({}), "[]");
  EXPECT_EQ(ParseShape("[2,0,3]"), shape);
  EXPECT_EQ(TensorBytes(shape, 4), 0U);
  EXPECT_EQ(TensorBytes({}, 8), 8U);
  const std::vector<std::int64_t> negative = {-1};
  EXPECT_FALSE(TensorBytes(negative, 4));
  const std::vector<std::int64_t> vast = {1LL << 62, 8};
  EXPECT_FALSE(TensorBytes(vast, 1));
  const std::vector<std::int64_t> none = {1LL << 62, 1LL << 62, 0};
  EXPECT_EQ(TensorBytes(none, 4), 0U) << "no elements";
  for (const char* text : {"", "[", "2", "[1.5]", "[-1]", "{}", "[\"2\"]"}) {
    EXPECT_FALSE(ParseShape(text)) << text;
  }
}

}  // namespace
}  // namespace telltale::store

// SPDX-License-Identifier: Apache-2.0
// What bounds an import of a Chrome trace: inflating it, by ISA-L and by zlib, and reading every
// top-level field of every event by simdjson, one thread each. usage: import_limits FILE.json.gz
#include <fmt/core.h>
#include <isa-l/igzip_lib.h>
#include <simdjson.h>
#include <zlib.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

namespace {

constexpr int kRounds = 3;
constexpr std::size_t kPiece = 1 << 20;

/// Seconds of the fastest round.
double FastestOf(const std::function<void()>& work) {
  double fastest = 1e9;
  for (int i = 0; i < kRounds; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    fastest = std::min(fastest, took.count());
  }
  return fastest;
}

std::string InflateIsal(const std::string& packed, bool keep) {
  std::string text;
  std::vector<std::uint8_t> piece(kPiece);
  inflate_state state;
  isal_inflate_init(&state);
  state.crc_flag = ISAL_GZIP;
  state.next_in = reinterpret_cast<std::uint8_t*>(const_cast<char*>(packed.data()));
  state.avail_in = static_cast<std::uint32_t>(packed.size());
  do {
    state.next_out = piece.data();
    state.avail_out = static_cast<std::uint32_t>(piece.size());
    if (isal_inflate(&state) != ISAL_DECOMP_OK) std::abort();
    if (keep) text.append(reinterpret_cast<char*>(piece.data()), piece.size() - state.avail_out);
  } while (state.block_state != ISAL_BLOCK_FINISH);
  return text;
}

void InflateZlib(const std::string& packed) {
  std::vector<std::uint8_t> piece(kPiece);
  z_stream stream{};
  if (inflateInit2(&stream, 31) != Z_OK) std::abort();
  stream.next_in = reinterpret_cast<std::uint8_t*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<std::uint32_t>(packed.size());
  int result = Z_OK;
  while (result == Z_OK) {
    stream.next_out = piece.data();
    stream.avail_out = static_cast<std::uint32_t>(piece.size());
    result = inflate(&stream, Z_NO_FLUSH);
  }
  inflateEnd(&stream);
  if (result != Z_STREAM_END) std::abort();
}

/// Every top-level field of every event; their number.
std::uint64_t ReadFields(simdjson::ondemand::parser* parser, const simdjson::padded_string& json,
                         std::uint64_t* events) {
  std::uint64_t fields = 0;
  *events = 0;
  simdjson::ondemand::document document = parser->iterate(json);
  for (auto event : document["traceEvents"]) {
    ++*events;
    for (auto field : event.get_object()) {
      std::string_view text;
      if (field.value().raw_json_token().get(text) == simdjson::SUCCESS && !text.empty()) ++fields;
    }
  }
  return fields;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::ifstream file(argv[1], std::ios::binary);
  const std::string packed{std::istreambuf_iterator<char>(file), {}};
  const simdjson::padded_string json(InflateIsal(packed, true));
  const double isal = FastestOf([&] { InflateIsal(packed, false); });
  const double zlib = FastestOf([&] { InflateZlib(packed); });
  simdjson::ondemand::parser parser;
  std::uint64_t events = 0;
  std::uint64_t fields = 0;
  const double parsing = FastestOf([&] { fields = ReadFields(&parser, json, &events); });
  fmt::print(
      "{{\"bytes\": {}, \"events\": {}, \"fields\": {}, \"isal_s\": {:.6f}, "
      "\"zlib_s\": {:.6f}, \"simdjson_s\": {:.6f}}}\n",
      json.size(), events, fields, isal, zlib, parsing);
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
// Thin C++17 over the reading API (telltale/read.h). Header only; nothing throws but
// std::bad_alloc.
//
//   telltale::Error error;
//   auto run = telltale::Run::Open("telltale-runs/x", &error);
//   if (!run) ...error.message...
//   auto steps = run->Table("steps", &error);
//   telltale::Batch batch;
//   while (steps->Next(&batch, &error)) {
//     const std::int64_t* const duration_ns = batch.Column<std::int64_t>("duration_ns");
//     for (std::int64_t i = 0; i < batch.rows(); ++i) use(duration_ns[i]);
//   }
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "telltale/read.h"

namespace telltale {

/// Why a call failed: a tt_read_code and one line.
struct Error {
  int code = 0;
  std::string message;
};

namespace detail {

inline bool Ok(int code, Error* error) {
  if (code == 0) return true;
  if (error != nullptr) *error = {code, tt_read_error()};
  return false;
}

inline std::string Take(char* text) {
  std::string out(text);
  tt_text_free(text);
  return out;
}

inline const char* Mode(const std::string& mode) { return mode.empty() ? nullptr : mode.c_str(); }

/// Arrow's letter for a type.
template <class T>
constexpr char kLetter = std::is_same_v<T, std::int32_t>    ? 'i'
                         : std::is_same_v<T, std::int64_t>  ? 'l'
                         : std::is_same_v<T, std::uint32_t> ? 'I'
                         : std::is_same_v<T, std::uint64_t> ? 'L'
                         : std::is_same_v<T, double>        ? 'g'
                                                            : '?';

}  // namespace detail

/// Texts of one column; valid as long as the batch.
class TextColumn {
 public:
  TextColumn() = default;
  TextColumn(const std::int32_t* offsets, const char* bytes) : offsets_(offsets), bytes_(bytes) {}
  /// False: the batch has no such column of texts.
  explicit operator bool() const { return offsets_ != nullptr; }
  std::string_view operator[](std::int64_t row) const {
    const std::int32_t begin = offsets_[row];
    return {bytes_ + begin, static_cast<std::size_t>(offsets_[row + 1] - begin)};
  }

 private:
  const std::int32_t* offsets_ = nullptr;
  const char* bytes_ = nullptr;
};

/// Truth values of one column; valid as long as the batch.
class BoolColumn {
 public:
  BoolColumn() = default;
  BoolColumn(const std::uint8_t* bits, std::int64_t offset) : bits_(bits), offset_(offset) {}
  explicit operator bool() const { return bits_ != nullptr; }
  bool operator[](std::int64_t row) const {
    const std::int64_t at = offset_ + row;
    return (bits_[at / 8] >> (at % 8) & 1) != 0;
  }

 private:
  const std::uint8_t* bits_ = nullptr;
  std::int64_t offset_ = 0;
};

/// Rows of one table, column by column. No column has nulls.
class Batch {
 public:
  Batch() = default;
  Batch(Batch&& other) noexcept { *this = std::move(other); }
  Batch& operator=(Batch&& other) noexcept {
    if (this == &other) return *this;
    Clear();
    table_ = std::exchange(other.table_, {});
    schema_ = std::move(other.schema_);
    array_ = std::exchange(other.array_, {});
    return *this;
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  ~Batch() { Clear(); }

  std::string_view table() const { return table_; }
  std::int64_t rows() const { return array_.length; }

  /// Values of a column of numbers; null where there is none of that name and type.
  template <class T>
  const T* Column(std::string_view name) const {
    static_assert(detail::kLetter<T> != '?', "int32, int64, uint32, uint64 or double");
    const ArrowArray* const column = Find(name, detail::kLetter<T>);
    if (column == nullptr) return nullptr;
    return static_cast<const T*>(column->buffers[1]) + column->offset + array_.offset;
  }
  TextColumn Text(std::string_view name) const {
    const ArrowArray* const column = Find(name, 'u');
    if (column == nullptr) return {};
    return {static_cast<const std::int32_t*>(column->buffers[1]) + column->offset + array_.offset,
            static_cast<const char*>(column->buffers[2])};
  }
  BoolColumn Bool(std::string_view name) const {
    const ArrowArray* const column = Find(name, 'b');
    if (column == nullptr) return {};
    return {static_cast<const std::uint8_t*>(column->buffers[1]), column->offset + array_.offset};
  }

  /// For other Arrow libraries; both stay this batch's.
  const ArrowSchema* schema() const { return schema_.get(); }
  const ArrowArray* array() const { return &array_; }

 private:
  friend class Table;
  friend class Follower;

  static void Release(ArrowSchema* schema) {
    if (schema->release != nullptr) schema->release(schema);
    delete schema;
  }
  static std::shared_ptr<ArrowSchema> NewSchema() { return {new ArrowSchema{}, &Batch::Release}; }

  void Clear() {
    if (array_.release != nullptr) array_.release(&array_);
    array_ = {};
  }
  const ArrowArray* Find(std::string_view name, char letter) const {
    for (std::int64_t i = 0; array_.release != nullptr && i < schema_->n_children; ++i) {
      const ArrowSchema& field = *schema_->children[i];
      if (name == field.name && field.format[0] == letter && field.format[1] == '\0') {
        return array_.children[i];
      }
    }
    return nullptr;
  }

  std::string table_;
  std::shared_ptr<ArrowSchema> schema_;
  ArrowArray array_{};
};

/// The rows of one table, a batch at a time.
class Table {
 public:
  Table(Table&& other) noexcept
      : name_(std::move(other.name_)),
        schema_(std::move(other.schema_)),
        stream_(std::exchange(other.stream_, {})) {}
  Table& operator=(Table&&) = delete;
  ~Table() {
    if (stream_.release != nullptr) stream_.release(&stream_);
  }

  /// False at the end, or on a failure, which `error` then holds (its code is not 0).
  bool Next(Batch* batch, Error* error) {
    batch->Clear();
    ArrowArray array{};
    if (stream_.get_next(&stream_, &array) != 0) {
      if (error != nullptr) *error = {TT_READ_UNUSABLE, stream_.get_last_error(&stream_)};
      return false;
    }
    if (array.release == nullptr) return false;
    batch->table_ = name_;
    batch->schema_ = schema_;
    batch->array_ = array;
    return true;
  }

 private:
  friend class Run;
  friend class Tensor;
  Table(std::string name, const ArrowArrayStream& stream)
      : name_(std::move(name)), schema_(Batch::NewSchema()), stream_(stream) {}

  std::string name_;
  std::shared_ptr<ArrowSchema> schema_;
  ArrowArrayStream stream_{};
};

/// Follows a run; see tt_run_follow.
class Follower {
 public:
  enum class State { kRecords, kWait, kEnd, kFailed };

  /// Never waits. `batch` is set where the state is kRecords.
  State Next(Batch* batch, Error* error) {
    batch->Clear();
    tt_follow_state state{};
    const char* table = nullptr;
    std::shared_ptr<ArrowSchema> schema = Batch::NewSchema();
    if (!detail::Ok(tt_follow_next(handle_.get(), &state, &table, schema.get(), &batch->array_),
                    error)) {
      return State::kFailed;
    }
    if (state == TT_FOLLOW_END) return State::kEnd;
    if (state == TT_FOLLOW_WAIT) return State::kWait;
    batch->table_ = table;
    batch->schema_ = std::move(schema);
    return State::kRecords;
  }
  std::int64_t frontier_ns() const { return tt_follow_frontier_ns(handle_.get()); }

 private:
  friend class Run;
  struct Close {
    void operator()(tt_follow* follow) const { tt_follow_close(follow); }
  };
  explicit Follower(tt_follow* handle) : handle_(handle) {}
  std::unique_ptr<tt_follow, Close> handle_;
};

/// Step numbers, ascending.
class Steps {
 public:
  Steps() = default;
  Steps(Steps&& other) noexcept : steps_(std::exchange(other.steps_, {})) {}
  Steps& operator=(Steps&& other) noexcept {
    if (this == &other) return *this;
    tt_steps_release(&steps_);
    steps_ = std::exchange(other.steps_, {});
    return *this;
  }
  Steps(const Steps&) = delete;
  Steps& operator=(const Steps&) = delete;
  ~Steps() { tt_steps_release(&steps_); }

  const std::int64_t* begin() const { return steps_.values; }
  const std::int64_t* end() const { return steps_.values + steps_.count; }
  std::size_t size() const { return steps_.count; }
  std::int64_t operator[](std::size_t index) const { return steps_.values[index]; }

 private:
  friend class Run;
  friend class Tensor;
  tt_steps steps_{};
};

/// Values of a tensor at one step or several, read-only; see tt_array. They stay as long as this.
class Array {
 public:
  Array() = default;
  Array(Array&& other) noexcept : array_(std::exchange(other.array_, {})) {}
  Array& operator=(Array&& other) noexcept {
    if (this == &other) return *this;
    tt_array_release(&array_);
    array_ = std::exchange(other.array_, {});
    return *this;
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { tt_array_release(&array_); }

  const char* dtype() const { return array_.dtype; }
  /// Of one step.
  std::vector<std::int64_t> shape() const {
    return {array_.shape, array_.shape + array_.dimensions};
  }
  std::size_t elements() const {
    return array_.item_bytes == 0 ? 0 : static_cast<std::size_t>(array_.bytes / array_.item_bytes);
  }
  std::size_t steps() const { return array_.step_count; }
  bool copied() const { return array_.copied != 0; }
  /// Element `index` of the step at position `step`, wherever it lies: files do not align.
  template <class T>
  T Get(std::size_t index, std::size_t step = 0) const {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value,
                static_cast<const char*>(array_.data) +
                    static_cast<std::ptrdiff_t>(step) * array_.step_stride + index * sizeof(T),
                sizeof(T));
    return value;
  }
  const tt_array& raw() const { return array_; }

 private:
  friend class Run;
  friend class Tensor;
  tt_array array_{};
};

/// One tensor; see tt_run_tensor. `mode` empty and `rank` TT_ANY_RANK: as the C calls say.
class Tensor {
 public:
  std::optional<telltale::Steps> Steps(Error* error, const std::string& mode = {},
                                       std::int32_t rank = TT_ANY_RANK,
                                       std::uint32_t recorded = 0) {
    telltale::Steps steps;
    if (!detail::Ok(
            tt_tensor_steps(handle_.get(), detail::Mode(mode), rank, recorded, &steps.steps_),
            error)) {
      return std::nullopt;
    }
    return steps;
  }
  std::optional<Array> At(std::int64_t step, Error* error, const std::string& mode = {},
                          std::int32_t rank = TT_ANY_RANK) {
    Array array;
    if (!detail::Ok(tt_tensor_at(handle_.get(), step, detail::Mode(mode), rank, &array.array_),
                    error)) {
      return std::nullopt;
    }
    return array;
  }
  std::optional<Array> Values(const std::int64_t* steps, std::size_t count, Error* error,
                              const std::string& mode = {}, std::int32_t rank = TT_ANY_RANK) {
    Array array;
    if (!detail::Ok(
            tt_tensor_values(handle_.get(), steps, count, detail::Mode(mode), rank, &array.array_),
            error)) {
      return std::nullopt;
    }
    return array;
  }
  /// Rows of this tensor in statistics, histograms or tensors; `columns` empty: all.
  std::optional<telltale::Table> Table(const std::string& table, Error* error,
                                       const std::vector<std::string>& columns = {}) {
    std::vector<const char*> names;
    for (const std::string& column : columns) names.push_back(column.c_str());
    ArrowArrayStream stream{};
    if (!detail::Ok(
            tt_tensor_table(handle_.get(), table.c_str(), names.data(), names.size(), &stream),
            error)) {
      return std::nullopt;
    }
    telltale::Table out(table, stream);
    if (out.stream_.get_schema(&out.stream_, out.schema_.get()) != 0) {
      if (error != nullptr) *error = {TT_READ_UNUSABLE, "the table has no schema"};
      return std::nullopt;
    }
    return out;
  }

 private:
  friend class Run;
  struct Close {
    void operator()(tt_tensor* tensor) const { tt_tensor_close(tensor); }
  };
  explicit Tensor(tt_tensor* handle) : handle_(handle) {}
  std::unique_ptr<tt_tensor, Close> handle_;
};

/// A run directory. Not thread-safe; open it once a thread.
class Run {
 public:
  static std::optional<Run> Open(const std::string& path, Error* error) {
    tt_run* run = nullptr;
    if (!detail::Ok(tt_run_open(path.c_str(), &run), error)) return std::nullopt;
    return Run(run);
  }

  /// JSON, as tt_run_info, tt_run_findings and tt_run_damage say.
  std::optional<std::string> Info(Error* error) { return Json(&tt_run_info, error); }
  std::optional<std::string> Findings(Error* error) { return Json(&tt_run_findings, error); }
  std::optional<std::string> Damage(Error* error) { return Json(&tt_run_damage, error); }

  /// `columns` empty: all; `where` empty: all rows.
  std::optional<telltale::Table> Table(const std::string& name, Error* error,
                                       const std::vector<std::string>& columns = {},
                                       const std::string& where = {}) {
    std::vector<const char*> names;
    for (const std::string& column : columns) names.push_back(column.c_str());
    const tt_table_query query{name.c_str(), names.data(), names.size(),
                               where.empty() ? nullptr : where.c_str()};
    ArrowArrayStream stream{};
    if (!detail::Ok(tt_run_table(handle_.get(), &query, &stream), error)) return std::nullopt;
    telltale::Table table(name, stream);
    if (table.stream_.get_schema(&table.stream_, table.schema_.get()) != 0) {
      if (error != nullptr) *error = {TT_READ_UNUSABLE, "the table has no schema"};
      return std::nullopt;
    }
    return table;
  }

  /// JSON, as tt_run_tensors says; `pattern` empty: all.
  std::optional<std::string> Tensors(Error* error, const std::string& pattern = {}) {
    char* text = nullptr;
    if (!detail::Ok(
            tt_run_tensors(handle_.get(), pattern.empty() ? nullptr : pattern.c_str(), &text),
            error)) {
      return std::nullopt;
    }
    return detail::Take(text);
  }
  std::optional<telltale::Tensor> Tensor(const std::string& name, Error* error) {
    tt_tensor* tensor = nullptr;
    if (!detail::Ok(tt_run_tensor_named(handle_.get(), name.data(), name.size(), &tensor), error)) {
      return std::nullopt;
    }
    return telltale::Tensor(tensor);
  }
  /// Steps of the run itself.
  std::optional<telltale::Steps> Steps(Error* error, const std::string& mode = {},
                                       std::int32_t rank = TT_ANY_RANK) {
    telltale::Steps steps;
    if (!detail::Ok(tt_run_steps(handle_.get(), detail::Mode(mode), rank, &steps.steps_), error)) {
      return std::nullopt;
    }
    return steps;
  }

  /// Values that a row of the table tensors names.
  std::optional<Array> Values(const tt_tensor_row& row, Error* error) {
    Array array;
    if (!detail::Ok(tt_run_values(handle_.get(), &row, &array.array_), error)) return std::nullopt;
    return array;
  }

  std::optional<Follower> Follow(const std::vector<std::string>& tables, Error* error) {
    std::vector<const char*> names;
    for (const std::string& table : tables) names.push_back(table.c_str());
    tt_follow* follow = nullptr;
    if (!detail::Ok(tt_run_follow(handle_.get(), names.data(), names.size(), &follow), error)) {
      return std::nullopt;
    }
    return Follower(follow);
  }

 private:
  struct Close {
    void operator()(tt_run* run) const { tt_run_close(run); }
  };
  explicit Run(tt_run* handle) : handle_(handle) {}
  std::optional<std::string> Json(int (*call)(tt_run*, char**), Error* error) {
    char* text = nullptr;
    if (!detail::Ok(call(handle_.get(), &text), error)) return std::nullopt;
    return detail::Take(text);
  }
  std::unique_ptr<tt_run, Close> handle_;
};

}  // namespace telltale

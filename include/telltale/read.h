/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading a run directory, C ABI: tables, tensors, findings, following a live run. The same calls
 * serve a run that is being recorded, one that has ended and one that is damaged; nothing is ever
 * written to it. C++ over it: telltale/read.hpp. Python: telltale.open(). Link telltale::read.
 *
 * Data crosses as the Arrow C data interface: no Arrow is needed to use it, any Arrow can take it.
 *
 * Errors: a call returns 0 or one of tt_read_code, and tt_read_error() then says in one line what,
 * where, why and what to do. Nothing throws. On failure what `out` points to is left alone.
 *
 * Thread safety: different handles may be used by different threads; one handle by one at a time.
 * Streams and followers may outlive the run they came from.
 */
#ifndef TELLTALE_READ_H_
#define TELLTALE_READ_H_

#include <stddef.h>
#include <stdint.h>

#include "telltale/arrow_abi.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TT_READ_API __attribute__((visibility("default")))
#else
#define TT_READ_API
#endif

/* Equal to the exit codes of the command line. */
typedef enum {
  TT_READ_OK = 0,
  TT_READ_USAGE = 2,    /* no such table or column, a condition that does not parse */
  TT_READ_UNUSABLE = 3, /* no such run, or nothing of it can be read */
  TT_READ_LIMIT = 4,    /* out of memory */
  TT_READ_IO = 5,
  TT_READ_PARTIAL = 7, /* values that are lost */
  TT_READ_VERSION = 8  /* written by a later format */
} tt_read_code;

typedef struct tt_run tt_run;
typedef struct tt_follow tt_follow;

/* Why the last failed call of this thread failed; valid until the thread's next call. */
TT_READ_API const char* tt_read_error(void);
/* "0.1.0". */
TT_READ_API const char* tt_read_version(void);
/* Frees a text that a call below gave. NULL is fine. */
TT_READ_API void tt_text_free(char* text);

/* Names of the tables there are, in a fixed order; NULL at and beyond their number. */
TT_READ_API const char* tt_table_name(size_t index);

/* ---- a run ---- */

TT_READ_API int tt_run_open(const char* path, tt_run** out);
TT_READ_API void tt_run_close(tt_run* run);

/* What the run is, as of now, a JSON object: id, name, state (running, finished, failed, killed,
 * lost), exit_code or signal where it ended so, command, cwd, host, telltale_version, created_ns,
 * attempts. */
TT_READ_API int tt_run_info(tt_run* run, char** out);

/* What the rules say of what is recorded so far: a JSON array, what costs most first, each element
 * as in `telltale check --json`. Reads the run from its start. */
TT_READ_API int tt_run_findings(tt_run* run, char** out);

typedef struct {
  const char* table;
  const char* const* columns; /* with column_count 0: all, `writer` first */
  size_t column_count;
  const char* where; /* NULL: all rows; else a condition as `telltale query --where` takes */
} tt_table_query;

/* A stream of the rows that the run holds now, by writer and sequence number, in pieces of bounded
 * size. `stream` is the caller's to release. Its errors: errno values, with the line in
 * get_last_error. */
TT_READ_API int tt_run_table(tt_run* run, const tt_table_query* query,
                             struct ArrowArrayStream* stream);

/* What the newest table that was read to its end had to skip on the way, of other tables too, a
 * JSON object: damaged_blocks, torn_tails, unreadable_files, missing_rows, impossible_rows,
 * foreign_files, notes (a line each). {} where nothing was skipped. */
TT_READ_API int tt_run_damage(tt_run* run, char** out);

/* ---- tensors ---- */

typedef struct tt_tensor tt_tensor;

/* What may have been recorded of a tensor at a step. */
#define TT_RECORDED_VALUES 1u
#define TT_RECORDED_STATISTICS 2u
#define TT_RECORDED_HISTOGRAMS 4u

/* Where a call takes them: mode NULL is the one in which there are records, TRAIN first, then EVAL,
 * PREDICT, GLOBAL; rank TT_ANY_RANK is any, of values the lowest that has the step. */
#define TT_ANY_RANK INT32_MIN

/* Ascending, each once; released with tt_steps_release. */
typedef struct {
  const int64_t* values;
  size_t count;
  void* owner;
} tt_steps;
TT_READ_API void tt_steps_release(tt_steps* steps);

/* Values of a tensor at one step, or at several as one array. Read-only; released with
 * tt_array_release, until when they stay, also after run and tensor were closed. */
typedef struct {
  const void* data;    /* of the first step; C order within a step; perhaps not aligned */
  uint64_t bytes;      /* of one step */
  int64_t step_stride; /* bytes from one step to the next, perhaps negative */
  const char* dtype;   /* "float32", "bfloat16", "float8_e4m3fn", "bool", ... */
  uint32_t item_bytes;
  size_t dimensions; /* of one step, and their extents */
  const int64_t* shape;
  const int64_t* steps; /* what the values are of, in the order asked for */
  size_t step_count;
  int32_t rank;   /* of the first step */
  int32_t copied; /* 0: `data` lies in the mapped file; 1: it was put together */
  void* owner;
} tt_array;
TT_READ_API void tt_array_release(tt_array* array);

/* The tensors whose name matches `pattern` (as a shell's, over the whole name: * ? [abc]; or the
 * name; NULL: all), by name: a JSON array of objects: name, collections, dtypes, shapes (lists of
 * integers; none where only statistics were taken), ranks, steps (an object: how many by mode),
 * first_step, last_step, and how many records there are: values, statistics, histograms. */
TT_READ_API int tt_run_tensors(tt_run* run, const char* pattern, char** out);
/* Steps of the run itself, those of the table steps. */
TT_READ_API int tt_run_steps(tt_run* run, const char* mode, int32_t rank, tt_steps* out);

/* One tensor, as the run holds it when a part of it is first asked for; open it again on a run that
 * is being recorded. Nothing is read yet. */
TT_READ_API int tt_run_tensor(tt_run* run, const char* name, tt_tensor** out);
/* The same by a name of so many bytes, which may hold NUL: names are what a program made them. */
TT_READ_API int tt_run_tensor_named(tt_run* run, const char* name, size_t bytes, tt_tensor** out);
TT_READ_API void tt_tensor_close(tt_tensor* tensor);

/* Steps at which any of `recorded` (TT_RECORDED_ together; 0: anything) was. TT_READ_USAGE: no
 * record of it in that mode. */
TT_READ_API int tt_tensor_steps(tt_tensor* tensor, const char* mode, int32_t rank,
                                uint32_t recorded, tt_steps* out);
/* The values at one step: a view of the file, which may still be growing. TT_READ_USAGE: none were
 * recorded then. */
TT_READ_API int tt_tensor_at(tt_tensor* tensor, int64_t step, const char* mode, int32_t rank,
                             tt_array* out);
/* The values at several steps as one array, without a copy where they lie at a constant distance in
 * one file. TT_READ_USAGE: none at one of them, or of another shape. */
TT_READ_API int tt_tensor_values(tt_tensor* tensor, const int64_t* steps, size_t count,
                                 const char* mode, int32_t rank, tt_array* out);
/* The rows of the tensor in table statistics, histograms or tensors; columns as in tt_table_query.
 */
TT_READ_API int tt_tensor_table(tt_tensor* tensor, const char* table, const char* const* columns,
                                size_t column_count, struct ArrowArrayStream* stream);
/* As tt_run_damage, of what was read of the tensor so far. */
TT_READ_API int tt_tensor_damage(tt_tensor* tensor, char** out);

/* A row of the table tensors, as a follower gives it; `file` is not empty. */
typedef struct {
  const char* writer;
  const char* file;
  uint64_t offset;
  uint64_t bytes;
  const char* dtype;
  const char* shape;
} tt_tensor_row;
/* Its values; step_count is 0. */
TT_READ_API int tt_run_values(tt_run* run, const tt_tensor_row* row, tt_array* out);

/* ---- following ---- */

/* Every record of the tables named, each once, from the run's start on and then as they come,
 * behind the watermark of all writers. The ord_ns of a table never goes back; of several tables
 * those rows come together that became readable together. Where the watcher gave up on a writer and
 * took it back, its late records come where they came to the watcher. With findings among the
 * tables the watcher is one of the writers, which holds the others back by up to a second. */
TT_READ_API int tt_run_follow(tt_run* run, const char* const* tables, size_t table_count,
                              tt_follow** out);
TT_READ_API void tt_follow_close(tt_follow* follow);

typedef enum {
  TT_FOLLOW_RECORDS = 0, /* a batch was given */
  TT_FOLLOW_WAIT = 1,    /* nothing new: ask again, 100 ms later for example */
  TT_FOLLOW_END = 2      /* the run has ended and everything was given */
} tt_follow_state;

/* The next batch: rows of one table, by ord_ns. Never waits. Where `state` says records, `table` (a
 * static name), `schema` and `array` are set; the last two are the caller's to release. */
TT_READ_API int tt_follow_next(tt_follow* follow, tt_follow_state* state, const char** table,
                               struct ArrowSchema* schema, struct ArrowArray* array);
/* Everything with ord_ns below this was given; INT64_MIN before the first record. */
TT_READ_API int64_t tt_follow_frontier_ns(const tt_follow* follow);
/* As tt_run_damage, of what was followed so far. */
TT_READ_API int tt_follow_damage(tt_follow* follow, char** out);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* TELLTALE_READ_H_ */

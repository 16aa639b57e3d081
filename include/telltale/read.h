/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading a run directory, C ABI: tables, findings, following a live run. The same calls serve a
 * run that is being recorded, one that has ended and one that is damaged; nothing is ever written
 * to it. C++ over it: telltale/read.hpp. Python: telltale.open(). Link telltale::read.
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
  TT_READ_VERSION = 8 /* written by a later format */
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
 * JSON object: damaged_blocks, torn_tails, unreadable_files, missing_rows, foreign_files, notes (a
 * line each). {} where nothing was skipped. */
TT_READ_API int tt_run_damage(tt_run* run, char** out);

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

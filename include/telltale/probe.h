/* SPDX-License-Identifier: Apache-2.0
 *
 * The probe's C ABI: what runs inside the user's training process.
 *
 * Promises. No function here throws, aborts, exits, blocks, waits for another process, writes to
 * the user's streams, installs a signal handler or changes errno. Without `telltale run` around the
 * process (no TELLTALE_SOCKET in the environment) every function returns at once and does nothing.
 * On an internal error the probe switches itself off, says so once through the channel (or, before
 * there is one, in the file named by TELLTALE_PROBE_LOG) and the training goes on.
 *
 * Thread safety: all functions may be called from any thread unless a comment says otherwise. In a
 * child made by fork() without exec the probe is off until tt_reinit_after_fork().
 *
 * Versions: TT_ABI_MAJOR changes when a call changes meaning; calls are only added within a major.
 */
#ifndef TELLTALE_PROBE_H_
#define TELLTALE_PROBE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TT_ABI_MAJOR 1
#define TT_ABI_MINOR 7

#if defined(__GNUC__)
#define TT_API __attribute__((visibility("default")))
#else
#define TT_API
#endif

/* What the process is; decides the size of its arena. */
typedef enum {
  TT_PROCESS_TRAINER = 0,
  TT_PROCESS_WORKER = 1,
  TT_PROCESS_OTHER = 2
} tt_process_kind;

typedef enum {
  TT_MODE_TRAIN = 0,
  TT_MODE_EVAL = 1,
  TT_MODE_PREDICT = 2,
  TT_MODE_GLOBAL = 3
} tt_mode;

/* Step phases, in the order of the columns of the table `steps`. */
typedef enum {
  TT_PHASE_DATA_WAIT = 0,
  TT_PHASE_FORWARD = 1,
  TT_PHASE_BACKWARD = 2,
  TT_PHASE_OPTIMIZER = 3,
  TT_PHASE_COMM_WAIT = 4,
  TT_PHASE_OTHER = 5,
  TT_PHASE_COUNT = 6
} tt_phase;

typedef enum {
  TT_SPAN_USER = 0,
  TT_SPAN_PHASE = 1,
  TT_SPAN_DATA = 2,
  TT_SPAN_RUNTIME = 3,
  TT_SPAN_MODULE = 4 /* a call of a module; since 1.4 */
} tt_span_category;

typedef enum { TT_INFO = 0, TT_LOW = 1, TT_MEDIUM = 2, TT_HIGH = 3 } tt_severity;

/* dtypes that the statistics kernels read. */
typedef enum {
  TT_DTYPE_F32 = 0,
  TT_DTYPE_F64 = 1,
  TT_DTYPE_F16 = 2,
  TT_DTYPE_BF16 = 3,
  TT_DTYPE_I64 = 4,
  TT_DTYPE_I32 = 5,
  TT_DTYPE_I16 = 6,
  TT_DTYPE_I8 = 7,
  TT_DTYPE_U8 = 8,
  TT_DTYPE_BOOL = 9,
  TT_DTYPE_C64 = 10,    /* complex of two float32; reductions are of the absolute values */
  TT_DTYPE_C128 = 11,   /* complex of two float64 */
  TT_DTYPE_F8E4M3 = 12, /* OCP float8 E4M3FN: NaN, no Inf */
  TT_DTYPE_F8E5M2 = 13, /* OCP float8 E5M2: NaN and Inf */
  TT_DTYPE_U16 = 14,
  TT_DTYPE_U32 = 15,
  TT_DTYPE_U64 = 16
} tt_dtype;

/* ---- life ---- */

/* Registers the process with the supervisor named by TELLTALE_SOCKET and makes its arena. Returns 1
 * when recording, 0 when not (no environment, refused, failed). Idempotent. `rank` -1: take RANK of
 * the environment, else 0. */
TT_API int tt_init(tt_process_kind kind, int32_t rank);
/* 1 when this process records. One relaxed load. */
TT_API int tt_active(void);
/* In a forked child, before its first record: registers it as a process of its own. As tt_init. */
TT_API int tt_reinit_after_fork(tt_process_kind kind);
/* Changes the rank of the process from here on (a process group is known late). */
TT_API void tt_set_rank(int32_t rank);
/* Switches the probe off for good and records why; the adapter calls it when one of its own hooks
 * failed. */
TT_API void tt_disable(const char* reason, size_t reason_len);

/* ---- names, clock ---- */

/* Id of a name, for the calls below; the same text gives the same id. One above 4 KiB is cut and
 * ends in a hash of the whole (counted). 0, "(folded)", when the table of names is full (counted).
 */
TT_API uint32_t tt_name(const char* text, size_t len);
/* The channel's clock: TSC ticks where the TSC is invariant, else CLOCK_MONOTONIC ns. */
TT_API uint64_t tt_now(void);

/* ---- records ---- */

/* A span that began at `begin` and ended at `end` (both of tt_now). */
TT_API void tt_span(uint32_t name, uint64_t begin, uint64_t end, tt_span_category category);
/* A value, now, at the open step and mode. */
TT_API void tt_scalar(uint32_t name, double value);
TT_API void tt_scalar_at(uint32_t name, double value, int64_t step, tt_mode mode);
/* Something that happened once. `data` is a JSON object or empty; one of more than 4 KiB is left
 * out, since half of one is none. The message is cut at 4 KiB. */
TT_API void tt_event(uint32_t kind, tt_severity severity, uint32_t subject, const char* message,
                     size_t message_len, const char* data, size_t data_len);

/* ---- the step machine (one a process, driven by the thread that trains) ----
 *
 * A step closes at the next data fetch or root forward after at least one optimizer call (or one
 * that a gradient scaler skipped); with several optimizers, when one comes round again. Without an
 * optimizer call it does so once its gradients are thrown away (tt_gradients_cleared) or were used
 * by the program itself (tt_gradients_used). Phases nest
 * by exclusive time. Accumulated passes are micro-steps. EVAL and PREDICT have steps of their own:
 * each data fetch, or each root forward where there was no fetch, begins one. The
 * steps belong to one thread: the main thread if it calls first, else the first that calls
 * backward, optimizer or tt_step; while its owner never called an optimizer, another that does so
 * takes over (no two such calls may then run at once). Calls from other threads, tt_finish apart,
 * are ignored and counted. */

/* A fetch of the next batch. */
TT_API void tt_fetch_begin(void);
/* 0 unknown, -1: the fetch ended the epoch. A loader may be ahead: each micro-step uses one of the
 * batches that were fetched, of the size that the model is called with if there is one. */
TT_API void tt_fetch_end(int64_t batch_size);
/* A root module's forward. `mode` as the framework says (gradients off or module in eval: EVAL).
 * GLOBAL, since 1.7: a pass without gradients of an agent, or of the network that it learns from.
 * That is no evaluation, and begins and ends no step. */
TT_API void tt_forward_begin(tt_mode mode);
TT_API void tt_forward_end(int64_t batch_size); /* 0 unknown */
TT_API void tt_backward_begin(void);
/* `loss`: the value, where has_loss; recorded as scalar `loss` (mean over micro-steps) when the
 * optimizer steps; further losses before one optimizer are `loss.1`, `loss.2` by optimizer order.
 */
TT_API void tt_backward_end(int has_loss, double loss);
/* Before tt_backward_begin, where the loss cannot be read yet (it lies on a device): returns what
 * it is called in tt_loss_arrived, or 0: not taken. Recorded as a loss of tt_backward_end is, with
 * the same name and step, once all that belong to the same call of an optimizer have arrived; at
 * tt_finish without those that have not. */
TT_API uint64_t tt_loss_later(void);
/* From any thread, but never while another call of the step machine runs. What another process
 * was given (a parent by fork) means nothing here. */
TT_API void tt_loss_arrived(uint64_t loss, double value);
/* An optimizer is made: any number that tells it from the living ones. Made when others have done
 * their work, and called before they are again, it is that of another fit: its step is its own, and
 * its loss and rate have the names that theirs had. Since 1.7. */
TT_API void tt_optimizer_made(uint64_t optimizer);
TT_API void tt_optimizer_begin(uint64_t optimizer);
TT_API void tt_optimizer_end(uint64_t optimizer, int skipped,
                             double learning_rate); /* lr NaN: unknown */
/* The gradients of `owner` (an optimizer, a model: any number that tells it from others) are about
 * to be cleared. Where the same owner has cleared them before, with a forward and a backward in
 * between and no optimizer call, that was computed for nothing: the step ends as one whose
 * optimizer was skipped (scalar `optimizer.skipped`, 1), with its loss. `kept`: not so this time,
 * the program has changed parameters or taken the gradients for something else. Returns 1 where the
 * step ended so, or would have but for `kept`. Since 1.6. */
TT_API int tt_gradients_cleared(uint64_t owner, int kept);
/* The gradients of the passes so far were used by the program itself (w -= lr * w.grad): a step,
 * with its loss. Does nothing once an optimizer was called. Before tt_fetch_begin or
 * tt_forward_begin, which then close it. Since 1.6. */
TT_API void tt_gradients_used(void);
/* The environment of an agent goes on (it is reset or stepped): closes a TRAIN step whose
 * optimizers were called. Since 1.7. */
TT_API void tt_acts(void);
/* A phase of any other kind, or of user code: nests like the ones above. */
TT_API void tt_phase_begin(tt_phase phase);
TT_API void tt_phase_end(tt_phase phase);
/* Explicit boundary: closes the open step now. After the first call only explicit boundaries close
 * TRAIN steps. */
TT_API void tt_step(void);
/* Closes what is open (at exit, so the last step is not lost). */
TT_API void tt_finish(void);
/* Number of the open TRAIN step, -1 before the first. */
TT_API int64_t tt_current_step(void);

/* ---- statistics ---- */

typedef struct {
  uint64_t count, nan_count, inf_count, zero_count;
  double min, max, mean, std, l1, l2; /* over the finite elements; population std; NaN if none */
} tt_stats;

/* One pass over `count` contiguous elements, on the calling thread; allocates nothing. Returns 0,
 * or -1 for an unknown dtype. Needs no tt_init. */
TT_API int tt_compute_stats(const void* data, uint64_t count, tt_dtype dtype, tt_stats* out);
/* Whether the plan asks for the statistics of tensors at the open step (0 no, 1 yes); decided once
 * a step, cheap to ask. `tensor` is the tensor's name id; 0, and an id of tt_name, which does not
 * tell the collection, ask whether any is wanted. Since 1.2 tt_tensor and tt_due tell more. */
TT_API int tt_wants_stats(uint32_t tensor);
/* Computes and records the statistics of a tensor at the open step. `collection`: name id. */
TT_API void tt_record_stats(uint32_t tensor, uint32_t collection, const void* data, uint64_t count,
                            tt_dtype dtype);
/* ---- capture: what the plan asks of a tensor, and giving it (since 1.2) ---- */

/* What can be taken of a tensor at one step; bits. */
enum {
  TT_TAKE_STATS = 1,     /* tt_stats */
  TT_TAKE_HISTOGRAM = 2, /* histogram and quantiles; brings the statistics with it */
  TT_TAKE_RAW = 4,       /* the values */
  TT_TAKE_SHAPE = 8,     /* shape and dtype alone */
  TT_TAKE_MORE =
      16 /* smallest and deviation of the absolute values, product; with the statistics */
};
/* Bit of tt_wanted's answer alone. */
#define TT_TAKE_UNKNOWN 0x80000000u
/* As `step` or `mode`: those of the open step. */
#define TT_STEP_OPEN INT64_MIN
#define TT_MODE_OPEN (-1)
#define TT_MAX_DIMS 16

/* An array in main memory. */
typedef struct {
  const void* data; /* of the first element; null only where there is none */
  tt_dtype dtype;
  uint32_t ndim;          /* 0: a scalar */
  const int64_t* shape;   /* ndim sizes, none negative */
  const int64_t* strides; /* ndim strides in elements, or null: C order. May be 0 or negative. */
} tt_array;

/* Id of a tensor: the pair of its collection ("weights", "gradients", "outputs", ..., as the
 * adapter knows it) and its name. The same pair gives the same id; 0 when the table of names is
 * full (counted). The plan answers it within a drain of the agent, by the name and by the
 * collection. */
TT_API uint32_t tt_tensor(const char* collection, size_t collection_len, const char* name,
                          size_t name_len);
/* What the plan asks of the tensor at this step and mode: TT_TAKE_ bits; 0: nothing. `tensor` 0:
 * what it asks of any. A tensor not yet answered: 0 (counted), or what the plan takes of every
 * name. */
TT_API uint32_t tt_due(uint32_t tensor, int64_t step, int mode);
/* Gives what `take` asks of the tensor's values: reads `array` before it returns, never after. What
 * is computed in place is (statistics); the rest is copied to bounded pools (histogram: in this
 * process, raw values: shared with the agent), and counted as skipped where there is no room.
 * Returns (since 1.5) the bits of what found room; TT_TAKE_STATS also for statistics that another
 * bit brought. */
TT_API uint32_t tt_record_tensor(uint32_t tensor, const tt_array* array, uint32_t take,
                                 int64_t step, int mode);
/* Statistics that were computed elsewhere (on a device). */
TT_API void tt_record_computed(uint32_t tensor, const tt_stats* stats, tt_dtype dtype, int64_t step,
                               int mode);
/* What TT_TAKE_MORE adds to tt_stats, over the finite elements; NaN if none. */
typedef struct {
  double abs_min, abs_std, prod;
} tt_more_stats;
/* As tt_record_computed, with those (since 1.5). */
TT_API void tt_record_computed_more(uint32_t tensor, const tt_stats* stats,
                                    const tt_more_stats* more, tt_dtype dtype, int64_t step,
                                    int mode);
/* For a tensor that is not in main memory (since 1.5): the elements that a histogram of it is made
 * of at most. Of more, that many in blocks of TT_SAMPLE_BLOCK which are evenly spread, the first
 * and the last elements among them, are its sample. */
#define TT_SAMPLE_BLOCK 64
TT_API uint32_t tt_sample_size(uint32_t tensor, int64_t step, int mode);
/* TT_TAKE_HISTOGRAM of a tensor of which only a sample is at hand; count, min and max of `stats`
 * are those of the whole tensor. Reads `sample` before it returns. 1, or 0 where there was no room
 * (counted). Since 1.5. */
TT_API int tt_record_sample(uint32_t tensor, const tt_array* sample, const tt_stats* stats,
                            int64_t step, int mode);
/* Bound of the raw values on their way from this process; 0: there are none (since 1.5). */
TT_API uint64_t tt_slab_bytes(void);
/* What the plan asks of the tensor at some step or other; of the tensor (collection, ""): of any of
 * that collection. With TT_TAKE_UNKNOWN where the plan has not answered it yet: ask again. */
TT_API uint32_t tt_wanted(uint32_t tensor);
/* Changes whenever what is asked may have changed; 0 before the first plan. */
TT_API uint64_t tt_plan_epoch(void);
/* Mode and (where `step` is not null) step of records made now; TT_MODE_GLOBAL and -1 before the
 * first. */
TT_API int tt_current(int64_t* step);

/* ---- windows of detail (since 1.3) ---- */

/* Changes whenever the windows of the plan do; 0 before any. Cheap: for each begin of a step. */
TT_API uint64_t tt_windows_epoch(void);
/* Copies the windows, a JSON object, into `out`, of `room` bytes, and returns their length; 0:
 * there is none; -1: they are being changed, or do not fit: ask again at the next step.
 * TT_MAX_WINDOWS bytes are room enough. */
#define TT_MAX_WINDOWS 16384
TT_API int32_t tt_windows(char* out, size_t room);
/* 1 where the calling thread is the one whose calls make the steps. */
TT_API int tt_owns_steps(void);

/* ---- spans of detail (since 1.4) ----
 *
 * Too many to be stored at every step: the agent holds the newest in memory and stores those of the
 * steps around a finding. Whole passes are recorded, as many as the agent gives room for. */

/* A pass begins (a root's forward): 1 where its spans of detail are wanted. 0 on a thread other
 * than the one that steps, and where nothing takes them. A load and a comparison where it is off.
 */
TT_API int tt_detail_pass(void);
/* As tt_span, of a pass that is wanted. */
TT_API void tt_detail_span(uint32_t name, uint64_t begin, uint64_t end, tt_span_category category);

/* Time from `begin` (tt_now) to now was ours: adds it to the open step's probe_ns, and moves it
 * from the open phase to TT_PHASE_OTHER; or, on another thread than the one that steps, adds it to
 * the probe_ns of the step that closes next. */
TT_API void tt_account(uint64_t begin);
/* Counts something that was wanted and not recorded, by a reason (name id): the ledger has it in
 * `probe.skipped` and, of 64 reasons in a process, in `skipped.<reason>`. 0, and what is beyond
 * them: `skipped.other`. */
TT_API void tt_count_skipped(uint32_t reason, uint64_t n);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* TELLTALE_PROBE_H_ */

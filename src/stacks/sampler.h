// SPDX-License-Identifier: Apache-2.0
// Samples the Python stacks of a training from its begin to its end: py-spy as a child of ours, a
// piece after the other, each read into RUN/stacks once what the agent says of its time is there.
// So no more than a piece is lost when anything dies, and no file grows.
//
// Keeps its processor time to a share: the next piece has fewer samples where the last one took too
// much. Thread safety: none.
#pragma once
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "stacks/phase_clock.h"
#include "stacks/piece_folder.h"
#include "stacks/py_spy.h"
#include "stacks/sampled_slices.h"
#include "store/follower.h"
#include "store/run_info.h"
#include "store/writer.h"

namespace telltale::stacks {

struct SamplerOptions {
  int rate = 20;
  bool pause = false;
  bool native = false;
  int piece_seconds = 30;
  double overhead_budget = 0.01;          ///< A fraction of step time.
  std::uint64_t most_bytes = 1ULL << 30;  ///< Of journals; then sampling ends.
};

/// Rate of the next piece, by what the last one cost: `cpu_share` of one core. Beside `idle_cores`
/// of at least a half up to a quarter of a core is allowed, else half of the budget.
int NextRate(int rate, int asked, double cpu_share, double idle_cores, unsigned cores,
             double budget);

class Sampler {
 public:
  static Result<std::unique_ptr<Sampler>> Open(std::filesystem::path run,
                                               SamplerOptions options = {});
  /// One round, each 100 ms. True when the training has ended, or cannot be sampled, and the folder
  /// is closed; no call after that.
  Result<bool> Poll();
  /// We must go while the run goes on.
  Status Stop();

 private:
  struct PendingEvent {
    std::string kind, severity, message, data;
  };

  Sampler(std::filesystem::path run, SamplerOptions options)
      : run_(std::move(run)),
        options_(options),
        rate_(options.rate),
        piece_seconds_(options.piece_seconds) {}

  std::int64_t Now() const { return Clock::System().MonotonicNs(); }
  bool TrainingLives();
  void FindLeftPieces();
  void StartPiece(std::int64_t now);
  void PieceEnded(const PySpyEnd& end, std::int64_t now);
  void Govern(const PySpyEnd& end, std::int64_t wall_ns);
  void Refuse(std::string why, std::string_view words);
  bool ReadAgents();
  void Import(const RecordedPiece& piece);
  void Take(const format::Rows& rows);
  Status Flush(std::int64_t now, bool force);

  const std::filesystem::path run_;
  const SamplerOptions options_;
  std::optional<PieceFolder> pieces_;
  std::int64_t opened_ns_ = 0;  ///< Monotonic.
  std::unique_ptr<store::Writer> writer_;
  store::RunInfo info_;
  store::Attempt attempt_;
  std::filesystem::path program_;
  std::optional<PySpyChild> child_;
  RecordedPiece recording_;
  std::int64_t piece_end_ns_ = 0;  ///< Monotonic: when the child should have ended.
  std::deque<RecordedPiece> recorded_;
  std::map<std::string, std::unique_ptr<store::WriterFollower>> agents_;
  store::Salvage salvage_;
  PhaseClock phases_;
  Processes processes_;
  int rate_;
  int piece_seconds_;  ///< Of the next one.
  int cheap_pieces_ = 0;
  bool over_ = false;  ///< No piece is started any more.
  bool refused_ = false;
  bool said_start_ = false;
  bool said_waiting_ = false;
  int failures_ = 0;
  std::int64_t next_start_ns_ = 0;
  std::int64_t training_gone_ns_ = 0;
  std::int64_t next_read_ns_ = 0;
  std::int64_t last_batch_ns_ = 0;
  std::int64_t last_ledger_ns_ = 0;
  std::vector<PendingEvent> events_;
  std::pair<std::uint64_t, std::uint64_t> idle_ticks_{};  ///< Idle, all.
  struct {
    std::uint64_t pieces = 0, pieces_lost = 0, samples = 0, slices = 0, dropped = 0, unread = 0,
                  damaged = 0, cpu_ns = 0;
  } counts_;
};

}  // namespace telltale::stacks

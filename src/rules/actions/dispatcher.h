// SPDX-License-Identifier: Apache-2.0
// From findings to actions, beside the watcher: decides, has each decision journalled before
// anything is done, acts on threads of its own, and says what became of it. A new watcher goes on
// from the journal: what was decided is not decided again; what was begun and can be done again
// under its key without harm is, of the rest it is said that its end is not known.
//
// Thread safety: none; its threads are inside.
#pragma once
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rules/actions/act.h"
#include "rules/actions/decision.h"

namespace telltale::rules {

/// An event of the watcher's journal, owning its text.
struct ActionEvent {
  std::string kind, severity, subject, message, data;
};

struct DispatcherOptions {
  std::filesystem::path run;
  std::string run_id, run_name, host;
  const ActionConsent* consent = nullptr;  ///< What may act; null: all.
};

class Dispatcher {
 public:
  Dispatcher(const std::vector<RuleSpec>& rules, DispatcherOptions options);
  ~Dispatcher();
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  /// Whether an event is one of these.
  static bool IsOurs(std::string_view kind) { return kind.starts_with("action."); }
  /// One of the journal, in its order, before the first Round.
  void Recall(std::string_view kind, std::string_view data, std::int64_t run_ns);

  /// `fresh`: revisions that the journal did not have; `all`: every incident as it is now. Returns
  /// what is to be journalled.
  std::vector<ActionEvent> Round(const std::vector<Finding>& fresh, const std::vector<Finding>& all,
                                 const Moment& now);
  /// The journal has all that Round has returned so far. True where something waits for the disk to
  /// have it too.
  bool Journalled();
  /// The disk has what the journal had at the last Journalled() that was true: what waited for that
  /// is done.
  void Durable();
  /// Nothing is decided and not done.
  bool idle() const;
  /// Lets go of what is being done. What another watcher may do again is left to it; of the rest it
  /// is said that it failed.
  void Stop();

 private:
  class Workers;
  enum class Stage : std::uint8_t { kDecided, kWaiting, kStarting, kJournalled, kActing };
  struct Task {
    Decision decision;
    Stage stage = Stage::kDecided;
    std::string lead;  ///< Key of the first of its group, once it starts.
  };
  /// Of an earlier watcher.
  struct Recalled {
    std::string key, rule, incident, action_id, kind;
    std::int64_t due_ns = 0, unix_ns = 0;
    std::uint32_t attempt = 0;
    bool started = false;
  };
  struct Outcome {
    std::string lead;
    Status status;
    std::string detail;
    bool cut_short = false;  ///< Stop() came before it was over.
  };

  /// Why an action that was decided is not begun any more; empty: nothing speaks against it.
  static std::string WhyTooLate(std::string_view kind, const Finding& finding, const Moment& now);
  void TakeUp(const std::vector<Finding>& all, const Moment& now, std::vector<ActionEvent>* out);
  void Start(const std::vector<Finding>& all, const Moment& now, std::vector<ActionEvent>* out);
  /// `last`: no other watcher comes.
  void Finish(bool last, std::vector<ActionEvent>* out);
  static void Let(const Task& task, const std::string& why, std::vector<ActionEvent>* out);
  void Perform(const std::string& lead);

  const DispatcherOptions options_;
  Decider decider_;
  std::vector<Task> tasks_;  ///< In the order of decisions.
  std::vector<Recalled> recalled_;
  std::vector<Outcome> outcomes_;  ///< Of what was done at once.
  std::unique_ptr<Workers> workers_;
  bool stopped_ = false;
};

}  // namespace telltale::rules

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
  /// The journal has all that Round has returned so far: what waited for that is done.
  void Journalled();
  /// Nothing is decided and not done.
  bool idle() const;
  /// Lets go of what is being done: it is said to have failed.
  void Stop();

 private:
  class Workers;
  enum class Stage : std::uint8_t { kDecided, kWaiting, kStarting, kActing };
  struct Task {
    Decision decision;
    Stage stage = Stage::kDecided;
    std::string lead;  ///< Key of the first of its group, once it starts.
  };
  /// Of an earlier watcher.
  struct Recalled {
    std::string key, rule, incident, action_id, kind;
    std::int64_t due_ns = 0, unix_ns = 0;
    bool started = false;
  };
  struct Outcome {
    std::string lead;
    Status status;
    std::string detail;
  };

  void TakeUp(const std::vector<Finding>& all, const Moment& now, std::vector<ActionEvent>* out);
  void Start(const Moment& now, std::vector<ActionEvent>* out);
  void Finish(std::vector<ActionEvent>* out);
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

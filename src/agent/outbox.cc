// SPDX-License-Identifier: Apache-2.0
#include "agent/outbox.h"

#include <utility>

namespace telltale::agent {

void Outbox::AddTo(std::uint32_t attempt, format::Batch* batch) {
  for (const PendingEvent& event : events_) {
    format::EventRow row;
    row.ord_ns = event.time_ns;
    row.time_ns = event.time_ns;
    row.kind = event.kind;
    row.severity = event.severity;
    row.subject = event.subject;
    row.message = event.message;
    row.data = event.data;
    row.step = -1;
    row.rank = event.rank;
    row.pid = event.pid;
    row.attempt = attempt;
    batch->rows.events.push_back(row);
    batch->positions.insert(batch->positions.end(), event.marks.begin(), event.marks.end());
  }
  offered_ = events_.size();
}

void Outbox::Sent() {
  events_.erase(events_.begin(), events_.begin() + static_cast<std::ptrdiff_t>(offered_));
  offered_ = 0;
}

void StampAttempt(std::uint32_t attempt, format::Rows* rows) {
  for (auto& row : rows->spans) row.attempt = attempt;
  for (auto& row : rows->steps) row.attempt = attempt;
  for (auto& row : rows->scalars) row.attempt = attempt;
  for (auto& row : rows->statistics) row.attempt = attempt;
  for (auto& row : rows->histograms) row.attempt = attempt;
  for (auto& row : rows->tensors) row.attempt = attempt;
  for (auto& row : rows->events) row.attempt = attempt;
}

void Ledger::Set(Key key, std::uint64_t value, Facts facts) {
  Entry& entry = entries_[std::move(key)];
  entry.value = value;
  entry.facts = facts;
}

void Ledger::AddTo(std::uint32_t attempt, std::int64_t time_ns, format::Batch* batch) {
  for (auto& [key, entry] : entries_) {
    entry.offered = entry.value;
    if (entry.value == entry.sent) continue;
    format::LedgerRow row;
    row.ord_ns = time_ns;
    row.time_ns = time_ns;
    row.name = key.name;
    row.subject = key.subject;
    row.value = entry.value;
    row.unit = entry.facts.unit;
    row.loss = entry.facts.loss;
    row.rank = entry.facts.rank;
    row.pid = entry.facts.pid;
    row.attempt = attempt;
    batch->rows.ledger.push_back(row);
  }
}

void Ledger::Sent() {
  for (auto& [key, entry] : entries_) entry.sent = entry.offered;
}

}  // namespace telltale::agent

// SPDX-License-Identifier: Apache-2.0
// What the probe reads of memory that others write: the control page with its answers, rules and
// windows of detail, and the table of the slab. The first byte says which of the two the patches
// are of.
#include "channel/control_page.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "channel/producer.h"
#include "channel/slab.h"
#include "fuzz.h"
#include "patches.h"
#include "probe/capture.h"

namespace telltale::fuzz {
namespace {

/// A process with a page that takes everything, and a slab of 256 KiB.
struct Watched {
  channel::Producer* producer = nullptr;
  probe::Capture* capture = nullptr;
  std::uint32_t tensor = 0;
  int page_fd = -1;
  int slab_fd = -1;
};

template <class T>
T* Zeroed() {
  return static_cast<T*>(
      ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

Watched Make() {
  Watched made;
  made.producer = Zeroed<channel::Producer>();
  Require(made.producer->Open(channel::kSmallPlan, 0, 0, format::ClockKind::kMonotonicNs, nullptr,
                              nullptr) == channel::OpenResult::kOk);
  const std::string name =
      format::kTensorMark + std::string("weights") + format::kTensorMark + "fc.weight";
  made.tensor = made.producer->Intern(name.data(), name.size());
  auto page = channel::ControlPage::Create(channel::kSmallPlan.name_limit);
  Require(page.ok());
  const format::ControlRule every = channel::ControlPage::EveryStep(~0U, 1);
  page->SetName(made.tensor, format::kNameYes | (1U << format::kNameMaskShift));
  page->SetRules({&every, 1}, 1, 256 << 10);
  page->SetWindows("{\"windows\": []}");
  page->PublishEpoch();
  auto probes = page->ReadOnlyFd();
  Require(probes.ok() && made.producer->UseControlPage(probes->release()));
  made.page_fd = ::dup(page->fd());
  auto slab = channel::CreateSlab(256 << 10);
  Require(slab.ok());
  made.slab_fd = ::dup(slab->get());
  Require(made.producer->slab().Map(slab->release()));
  made.capture = Zeroed<probe::Capture>();
  made.capture->Init(made.producer);
  return made;
}

void Record(const Watched& watched, std::int64_t step) {
  probe::Capture& capture = *watched.capture;
  capture.StepChanged(step, 0);
  static_cast<void>(capture.any_due());
  static_cast<void>(capture.Wanted(watched.tensor));
  static_cast<void>(capture.DueAt(0, step, 1));
  static_cast<void>(capture.epoch());
  std::array<float, 600> values{};
  tt_array array{};
  array.data = values.data();
  array.dtype = TT_DTYPE_F32;
  array.ndim = 1;
  const std::int64_t shape[] = {static_cast<std::int64_t>(values.size())};
  array.shape = shape;
  const std::uint32_t due = capture.DueNow(watched.tensor);
  if (due != 0) static_cast<void>(capture.Record(watched.tensor, array, due, step, 0));
}

}  // namespace

TELLTALE_FUZZ_TARGET(control_page) {
  static const Watched watched = Make();
  static Patched page(watched.page_fd);
  static Patched slab(watched.slab_fd);
  const bool of_slab = !bytes.empty() && bytes[0] == 's';
  const std::string_view patches = bytes.substr(std::min<std::size_t>(1, bytes.size()));
  page.Apply(of_slab ? std::string_view() : patches);
  slab.Apply(of_slab ? patches : std::string_view());
  std::array<char, format::kMaxWindowsBytes> windows{};
  std::size_t length = 0;
  if (watched.producer->ReadWindows(windows.data(), windows.size(), &length) != 0) {
    Require(length <= windows.size());
  }
  bool whole = false;
  static_cast<void>(watched.producer->KnownCollection(watched.tensor, &whole));
  static_cast<void>(watched.producer->NameWord(watched.tensor));
  static_cast<void>(watched.producer->NameWord(~0U));
  static_cast<void>(watched.producer->PlanEpoch());
  static_cast<void>(watched.producer->ControlFlags());
  for (std::int64_t step = 0; step < 4; ++step) Record(watched, step);
}

}  // namespace telltale::fuzz

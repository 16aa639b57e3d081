// SPDX-License-Identifier: Apache-2.0
#include "interchange/chrome/parse_pipeline.h"

#include <exception>
#include <new>
#include <utility>

#include "interchange/chrome/event_blocks.h"
#include "interchange/trace_input.h"

namespace telltale::interchange {

ImportWorkers::ImportWorkers(std::size_t threads) {
  for (std::size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

ImportWorkers::~ImportWorkers() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ImportWorkers::Run() {
  BlockParser parser;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
    if (stop_) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    ++running_;
    lock.unlock();
    Status failed;
    try {
      task(parser);
    } catch (const std::bad_alloc&) {
      failed = {Code::kLimit, "it needs more memory than an import may have"};
    } catch (const std::exception& error) {
      failed = {Code::kUnusable, error.what()};
    }
    task = nullptr;
    lock.lock();
    --running_;
    if (failure_.ok() && !failed.ok()) failure_ = std::move(failed);
    changed_.notify_all();
  }
}

void ImportWorkers::Post(Task task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
}

void ImportWorkers::WaitFor(std::size_t most) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return tasks_.size() + running_ <= most; });
}

Status ImportWorkers::failure() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

namespace {

/// What the reading thread, the workers and the caller share of one trace.
struct TraceInWork {
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t in_work = 0;
  std::map<std::uint64_t, std::unique_ptr<ChromeBlock>> parsed;
  std::uint64_t blocks = 0;  ///< Once `read`.
  bool read = false;         ///< There is no further block.
  bool stop = false;
  bool lost = false;  ///< A block could not be parsed for want of memory.
  Status status;
};

}  // namespace

Result<ParsedText> ParseTrace(const InputFile& file, std::string_view window,
                              std::uint64_t most_bytes, ImportWorkers* workers,
                              const std::function<bool(std::unique_ptr<ChromeBlock>)>& take) {
  TELLTALE_ASSIGN_OR_RETURN(const std::unique_ptr<TraceInput> input, TraceInput::Open(file));
  EventBlocks blocks(input.get(), most_bytes);
  TraceInWork work;
  const std::size_t most_in_work = workers->threads() + 2;

  const auto parse = [&work, &blocks, window](EventBlock* raw, BlockParser& parser) {
    std::unique_ptr<EventBlock> block(raw);
    std::unique_ptr<ChromeBlock> parsed;
    const std::uint64_t number = block->number;
    std::exception_ptr failed;
    try {
      parsed = parser.Parse(block.get(), window);
    } catch (...) {
      failed = std::current_exception();
    }
    blocks.Recycle(std::move(block));
    {
      const std::lock_guard lock(work.mutex);
      if (parsed != nullptr) {
        work.parsed[number] = std::move(parsed);
      } else {
        work.lost = true;
      }
      work.changed.notify_all();
    }
    if (failed) std::rethrow_exception(failed);
  };
  std::thread reader([&] {
    Status status;
    std::uint64_t count = 0;
    try {
      while (true) {
        {
          std::unique_lock lock(work.mutex);
          work.changed.wait(lock, [&] { return work.stop || work.in_work < most_in_work; });
          if (work.stop) break;
          ++work.in_work;
        }
        auto block = blocks.Next();
        if (!block.ok()) {
          status = block.status();
          break;
        }
        if (*block == nullptr) break;
        ++count;
        workers->Post([parse, raw = std::move(block).value().release()](BlockParser& parser) {
          parse(raw, parser);
        });
      }
    } catch (const std::bad_alloc&) {
      status = {Code::kLimit, "it needs more memory than an import may have"};
    }
    const std::lock_guard lock(work.mutex);
    work.status = status;
    work.blocks = count;
    work.read = true;
    work.changed.notify_all();
  });

  std::exception_ptr thrown;
  try {
    for (std::uint64_t next = 0;; ++next) {
      std::unique_ptr<ChromeBlock> block;
      {
        std::unique_lock lock(work.mutex);
        work.changed.wait(lock, [&] {
          return work.lost || work.parsed.contains(next) || (work.read && next >= work.blocks);
        });
        const auto found = work.parsed.find(next);
        if (work.lost || found == work.parsed.end()) break;
        block = std::move(found->second);
        work.parsed.erase(found);
        --work.in_work;
        work.changed.notify_all();
      }
      if (!take(std::move(block))) break;
    }
  } catch (...) {
    thrown = std::current_exception();
  }
  {
    const std::lock_guard lock(work.mutex);
    work.stop = true;
    work.changed.notify_all();
  }
  reader.join();
  workers->WaitFor(0);
  if (thrown) std::rethrow_exception(thrown);
  TELLTALE_RETURN_IF_ERROR(std::move(work.status));
  TELLTALE_RETURN_IF_ERROR(workers->failure());
  return ParsedText{.header = ReadChromeHeader(blocks.Surroundings()),
                    .inflated_bytes = blocks.inflated_bytes(),
                    .damaged = blocks.damaged(),
                    .damage_offset = blocks.first_damage_offset(),
                    .complete = blocks.complete(),
                    .gzip_damage = input->damage(),
                    .trailing = input->trailing()};
}

}  // namespace telltale::interchange

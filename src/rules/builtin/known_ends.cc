// SPDX-License-Identifier: Apache-2.0
#include "rules/builtin/known_ends.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <iterator>
#include <system_error>

namespace telltale::rules {
namespace {

// The first that fits is taken: the narrower stands before the wider.
constexpr KnownEnd kEnds[] = {
    {"", "Expected more than 1 value per channel",
     "A batch of one sample came to a BatchNorm layer in training: mostly the last batch of an "
     "epoch, when the number of samples is one more than a multiple of the batch size.",
     "Give the DataLoader drop_last=True, or a batch size that leaves no batch of one sample."},
    {"IndexError", "Target ", "A label is not below the number of classes that the model has.",
     "Labels run from 0 to classes − 1: print y.min() and y.max() beside the size of the model's "
     "last layer."},
    {"", "device-side assert triggered",
     "A kernel on the GPU was given an index out of range, mostly a label or the index of an "
     "embedding. Kernels run later than the line that starts them, so the line may be another one.",
     "Labels run from 0 to classes − 1: print y.min() and y.max(). The true line comes with "
     "CUDA_LAUNCH_BLOCKING=1, or on the CPU."},
    {"", "stack expects each tensor to be equal size",
     "The samples of one batch have different shapes.",
     "Crop or pad them to one shape in the Dataset, or give the DataLoader a collate_fn that "
     "pads."},
    {"", "out of shared memory",
     "A worker of the DataLoader was killed by SIGBUS: /dev/shm, through which workers hand over "
     "their batches, was full.",
     "Make /dev/shm larger (docker run --shm-size=8g, or --ipc=host), or call "
     "torch.multiprocessing.set_sharing_strategy('file_system'); fewer workers and a smaller "
     "prefetch_factor need less of it."},
    {"", "unable to open shared memory object",
     "/dev/shm, through which the workers of the DataLoader hand over their batches, had no room, "
     "or the process had too many files open.",
     "Make /dev/shm larger (docker run --shm-size=8g), raise `ulimit -n`, or call "
     "torch.multiprocessing.set_sharing_strategy('file_system')."},
    {"", "Too many open files",
     "The process has reached its limit of open files: files are opened and not closed.",
     "Close each file once it is read (with open(...) as file:), or keep a limited number of them "
     "open; ulimit -n 65536 only puts it off.",
     "The process has reached its limit of open files: files are opened and not closed, or tensors "
     "of the DataLoader's workers are kept, each of which holds one.",
     "Close each file once it is read (with open(...) as file:), and keep no tensors of the loader "
     "in a list; where that is not it, call "
     "torch.multiprocessing.set_sharing_strategy('file_system')."},
    {"", "received 0 items of ancdata",
     "The process has reached its limit of open files; each tensor that a worker of a DataLoader "
     "hands over holds one while it is kept.",
     "Raise the limit (ulimit -n 65536), or call "
     "torch.multiprocessing.set_sharing_strategy('file_system')."},
    {"", "No space left on device", "The disk was full.",
     "Make room there (df -h, df -i), keep fewer checkpoints, or write them to another file "
     "system."},
    {"", "Disk quota exceeded", "The quota of the file system was used up.",
     "Make room there (quota -s), keep fewer checkpoints, or write them to another file system."},
    {"", "File too large", "A file would have become larger than the limit allows.",
     "Raise the limit (ulimit -f), or write the checkpoint in parts, to another file system."},
    {"", "file write failed",
     "torch.save could not write all of a file: most often the disk or the quota is full, or the "
     "file would be larger than allowed (ulimit -f).",
     "Make room there (df -h, quota -s), raise the limit (ulimit -f unlimited), or write "
     "checkpoints "
     "to another file system."},
    {"", "unexpected pos",
     "torch.save could not write all of a file: most often the disk or the quota is full, or the "
     "file would be larger than allowed (ulimit -f).",
     "Make room there (df -h, quota -s), raise the limit (ulimit -f unlimited), or write "
     "checkpoints "
     "to another file system."},
    {"", "Can't pickle local object",
     "Workers that are started by spawn are sent the Dataset and its functions, and a lambda or a "
     "function inside of a function cannot be sent.",
     "Move it to the top of its module (functools.partial serves for arguments), or give the "
     "DataLoader multiprocessing_context='fork'."},
    {"", "Can't get local object",
     "Workers that are started by spawn are sent the Dataset and its functions, and a lambda or a "
     "function inside of a function cannot be sent.",
     "Move it to the top of its module (functools.partial serves for arguments), or give the "
     "DataLoader multiprocessing_context='fork'."},
    {"PicklingError", "", "What a worker or another rank is to be given cannot be pickled.",
     "Move functions and classes to the top of their module; open files and connections in the "
     "worker."},
    {"", "before the current process has finished its bootstrapping phase",
     "A process that is started by spawn imports the script again, and the script starts processes "
     "while it is imported.",
     "Put what starts the training behind `if __name__ == \"__main__\":`."},
    {"", "Cannot re-initialize CUDA in forked subprocess",
     "A worker that was forked after CUDA was first used cannot use CUDA.",
     "Keep the Dataset on the CPU and move batches in the training loop, or give the DataLoader "
     "multiprocessing_context='spawn'."},
    {"", "modified by an inplace operation",
     "A tensor that the backward pass needs was changed in place after the forward pass used it: a "
     "weight by an optimizer's step() between the two, anything else by x += y or inplace=True.",
     "Call backward() of every loss before any optimizer steps, or run the forward pass again "
     "after "
     "the step (as for the generator of a GAN). Else torch.autograd.set_detect_anomaly(True) names "
     "the line of the forward pass: write x = x + y for x += y there."},
    {"", "backward through the graph a second time",
     "backward() came to a graph whose tensors the backward pass before had freed: a loss or a "
     "hidden state of an earlier step is still attached.",
     "detach() what goes from one step to the next; retain_graph=True only where two losses share "
     "one forward pass."},
    {"", "does not require grad and does not have a grad_fn",
     "The loss does not depend on any parameter that is trained.",
     "Look between model and loss for detach(), item(), argmax or torch.no_grad(), and for "
     "parameters with requires_grad=False."},
    {"", "mat1 and mat2 shapes cannot be multiplied",
     "A Linear layer was given another number of features than it was made for.",
     "Print x.shape in front of it: its last dimension must be in_features."},
    {"", "Expected all tensors to be on the same device",
     "Some tensors are on one device and some on another.",
     "Move the model and each batch to one device: model.to(device), x.to(device)."},
    {"", "should be the same", "The input has another device or dtype than the parameters.",
     "Move the input as the model was: x.to(device), x.float()."},
    {"", "expected scalar type", "A tensor has another dtype than the operation takes.",
     "Labels and indices are int64 (y.long()), inputs have the dtype of the parameters "
     "(x.float())."},
    {"IndexError", "index out of range in self",
     "An Embedding was given an index that is not below its number of entries.",
     "Print the largest index: it must be below num_embeddings, which is the tokenizer's number of "
     "words with its special ones."},
    {"", "Error(s) in loading state_dict",
     "The checkpoint belongs to a model with other layers or shapes.",
     "Make the model as it was when the checkpoint was written; `module.` in front of its names "
     "comes from DataParallel."},
    {"", "Address already in use",
     "Another process has the port: often the one before, which has not ended.",
     "End what is left of it, or take another port (torchrun --master-port, MASTER_PORT)."},
    {"", "Connection closed by peer", "Another rank ended while this one waited for it.",
     "Look at the output of the rank that ended first."},
    {"", "Connection reset by peer", "Another rank ended while this one waited for it.",
     "Look at the output of the rank that ended first."},
    {"", "Timed out waiting", "Another rank did not come in time.",
     "Look at what the rank that is late does; give init_process_group a longer timeout where that "
     "is right."},
    {"", "NCCL error", "The communication between GPUs has failed.",
     "NCCL_DEBUG=INFO says what: mostly a rank that has ended, or a network interface."},
    {"ModuleNotFoundError", "", "A package is not installed in this Python.",
     "Install it with the interpreter that trains: python -m pip install."},
    {"", "Torch not compiled with CUDA enabled", "This build of PyTorch has no CUDA.",
     "Install a build with CUDA, or choose the device by torch.cuda.is_available()."},
    {"", "Found no NVIDIA driver", "No driver of an NVIDIA GPU is there.",
     "Give the container its GPUs (docker run --gpus all), or choose the device by "
     "torch.cuda.is_available()."},
    {"", "CUBLAS_STATUS_ALLOC_FAILED", "cuBLAS found no memory on the GPU.",
     "Make the batch smaller; the memory may be another process's: nvidia-smi."},
    {"", "CUBLAS_STATUS", "cuBLAS failed: mostly an index out of range in a kernel before it.",
     "The true line comes with CUDA_LAUNCH_BLOCKING=1, or on the CPU."},
    {"", "can't allocate memory", "The host had no memory left for a tensor.",
     "Make the batch smaller, use fewer workers, and look for what grows from step to step."},
    {"", "not enough memory", "The host had no memory left for a tensor.",
     "Make the batch smaller, use fewer workers, and look for what grows from step to step."},
    {"MemoryError", "", "The host had no memory left.",
     "Make the batch smaller, use fewer workers, and look for what grows from step to step."},
};

constexpr std::string_view kHangup =
    "The terminal or the connection was closed; tmux, screen or nohup keep a training from that.";
constexpr std::string_view kFaultHandler =
    "python -X faulthandler prints the line of Python at which it crashes. Check the last thing "
    "that changed: a native package, its version beside that of torch.";
// In a worker torch handles these signals itself, in front of faulthandler.
constexpr std::string_view kFaultInWorker =
    "Run it with num_workers=0 and python -X faulthandler, which then prints the line of Python at "
    "which it crashes (in a worker torch handles the signal itself). Check the last thing that "
    "changed: a native package, its version beside that of torch.";

constexpr KnownSignal kSignals[] = {
    {SIGHUP, "SIGHUP", "was ended by SIGHUP", "The terminal or connection that it hung on is gone.",
     kHangup},
    {SIGINT, "SIGINT", "was interrupted (SIGINT)", "Somebody pressed Ctrl-C, or sent SIGINT.", ""},
    {SIGQUIT, "SIGQUIT", "was ended by SIGQUIT", "Somebody pressed Ctrl-\\, or sent SIGQUIT.", ""},
    {SIGILL, "SIGILL", "crashed with SIGILL",
     "A native library uses instructions that this processor does not have.",
     "Install a build of the library for this processor; python -X faulthandler names the line."},
    {SIGABRT, "SIGABRT", "aborted (SIGABRT)",
     "A native library has given up: why is in the last lines of stderr.",
     "Read the last lines of stderr; python -X faulthandler prints the line of Python."},
    {SIGBUS, "SIGBUS", "was killed by SIGBUS",
     "It touched memory behind which there was no file any more, or no room for one.",
     "Look for a file that was cut while it was mapped, and for a full file system."},
    {SIGFPE, "SIGFPE", "crashed with SIGFPE", "A native library divided an integer by zero.",
     kFaultHandler, kFaultInWorker},
    {SIGKILL, "SIGKILL", "was killed by SIGKILL",
     "Somebody, or the kernel, has sent SIGKILL; Telltale has not.",
     "Look at who kills: the scheduler (sacct, kubectl describe pod), the kernel's log (dmesg)."},
    {SIGSEGV, "SIGSEGV", "crashed with SIGSEGV",
     "A native library read or wrote memory that is not there.", kFaultHandler, kFaultInWorker},
    {SIGPIPE, "SIGPIPE", "was ended by SIGPIPE", "Who read its output has ended.",
     "Keep what reads its output running, or write to a file."},
    {SIGTERM, "SIGTERM", "was ended by SIGTERM",
     "Somebody outside of Telltale has sent SIGTERM: a scheduler whose time limit is reached, a "
     "machine that is taken away, kill.",
     "Ask the scheduler (sacct, kubectl describe pod); where it can happen again save a checkpoint "
     "every few minutes and on SIGTERM."},
    {SIGXCPU, "SIGXCPU", "was ended by SIGXCPU", "It has reached its limit of processor time.",
     "Raise the limit (ulimit -t)."},
    {SIGXFSZ, "SIGXFSZ", "was ended by SIGXFSZ",
     "A file would have become larger than the limit allows.", "Raise the limit (ulimit -f)."},
};

/// The size behind `label`: "2.00 GiB".
std::optional<double> SizeAt(std::string_view text, std::size_t at) {
  while (at < text.size() && text[at] == ' ') ++at;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  constexpr std::array<std::pair<std::string_view, double>, 4> kUnits = {
      {{"GiB", 1073741824.0}, {"MiB", 1048576.0}, {"KiB", 1024.0}, {"bytes", 1.0}}};
  for (const auto& [name, bytes] : kUnits) {
    if (unit.starts_with(name)) return value * bytes;
  }
  return std::nullopt;
}

std::optional<double> SizeBehind(std::string_view text, std::string_view label) {
  const std::size_t at = text.find(label);
  return at == std::string_view::npos ? std::nullopt : SizeAt(text, at + label.size());
}

/// The size in front of `label`: "15.78 GiB total capacity".
std::optional<double> SizeBefore(std::string_view text, std::string_view label) {
  const std::size_t at = text.find(label);
  if (at == std::string_view::npos) return std::nullopt;
  std::size_t begin = at;
  for (int words = 0; begin > 0 && words < 2;) {
    --begin;
    if (text[begin] == ' ') ++words;
  }
  return SizeAt(text, begin);
}

}  // namespace

const KnownEnd* FindKnownEnd(std::string_view type, std::string_view text) {
  const auto* found = std::find_if(std::begin(kEnds), std::end(kEnds), [&](const KnownEnd& end) {
    return type.find(end.type) != std::string_view::npos &&
           text.find(end.text) != std::string_view::npos;
  });
  return found == std::end(kEnds) ? nullptr : found;
}

const KnownSignal* FindKnownSignal(int signal) {
  const auto* found =
      std::find_if(std::begin(kSignals), std::end(kSignals),
                   [&](const KnownSignal& known) { return known.signal == signal; });
  return found == std::end(kSignals) ? nullptr : found;
}

std::string SignalName(int signal) {
  const KnownSignal* known = FindKnownSignal(signal);
  if (known != nullptr) return std::string(known->name);
  if (signal == SIGUSR1) return "SIGUSR1";
  if (signal == SIGUSR2) return "SIGUSR2";
  if (signal == SIGALRM) return "SIGALRM";
  return fmt::format("signal {}", signal);
}

std::optional<CudaMemory> CudaMemoryOf(std::string_view text) {
  const auto wanted = SizeBehind(text, "Tried to allocate ");
  if (!wanted || text.find("CUDA out of memory") == std::string_view::npos) return std::nullopt;
  CudaMemory memory;
  memory.wanted = *wanted;
  // torch 1 and 2 say the same in different words.
  memory.total = SizeBefore(text, " total capacity");
  if (!memory.total) memory.total = SizeBehind(text, "total capacity of ");
  memory.free = SizeBefore(text, " free");
  if (!memory.free) memory.free = SizeBehind(text, "of which ");
  memory.allocated = SizeBefore(text, " already allocated");
  if (!memory.allocated) memory.allocated = SizeBefore(text, " is allocated by PyTorch");
  memory.idle = SizeBefore(text, " is reserved by PyTorch but unallocated");
  if (const auto reserved = SizeBefore(text, " reserved in total by PyTorch");
      reserved && memory.allocated) {
    memory.idle = std::max(0.0, *reserved - *memory.allocated);
  }
  return memory;
}

}  // namespace telltale::rules

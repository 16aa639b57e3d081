// SPDX-License-Identifier: Apache-2.0
#include "rules/builtin/loader_cures.h"

namespace telltale::rules {
namespace {

constexpr std::string_view kImages =
    "Resize and convert the images once, ahead of the training, and keep them small (a random crop "
    "may stay in the loader); Image.draft() decodes a JPEG at a smaller size; where there is a "
    "GPU, decode there (torchvision.io.decode_jpeg, DALI).";
constexpr std::string_view kArrays =
    "Vectorise it over the batch, or do it once ahead of time; where there is a GPU, CuPy or torch "
    "computes it there.";
constexpr std::string_view kServer =
    "Ask for the next items while the model works (more workers, threads, asynchronous requests), "
    "keep connections open, or copy the data to a local disk once.";
constexpr std::string_view kArchive =
    "Open the archive once in each worker and not for each item, or unpack it once.";
constexpr std::string_view kText =
    "Parse it once, ahead of the training, and keep arrays (NumPy, Arrow, safetensors).";
constexpr std::string_view kTokens =
    "Tokenize once, ahead of the training, and keep the token ids.";
constexpr std::string_view kSound =
    "Decode and resample the sound once, ahead of the training, and keep arrays.";
constexpr std::string_view kChunks =
    "Open the file once in each worker, make its chunks as large as an item, and read the rows of "
    "a batch in one call.";

constexpr std::string_view kFiles =
    "Read few large files in place of many small ones, each in one call, and keep what is read "
    "again in memory.";
constexpr std::string_view kThread =
    "Find what the thread that it waits for does (a lock, a queue, a pool of the dataset's own): "
    "each worker has such a thread of its own.";
constexpr std::string_view kLock =
    "Workers that share a lock work one at a time: read without it where nothing is written, or "
    "give each worker its own handle, opened at its first item.";

constexpr LoaderCure kCures[] = {
    {.library = "pandas",
     .does = "pandas works on a table",
     .cure = "Read the table once and not for each item, or convert it once to NumPy or Arrow "
             "arrays (to_numpy) and give each item by its row; for work on whole tables that must "
             "stay in pandas, Modin uses the free cores."},
    {.library = "polars",
     .does = "polars works on a table",
     .cure = "Convert the table once to arrays, and give each item by its row."},
    {.library = "pyarrow",
     .does = "pyarrow works on a table",
     .cure = "Read row groups once in each worker, and give each item by its row."},
    {.library = "PIL", .does = "PIL decodes or changes images", .cure = kImages, .within = true},
    {.library = "cv2", .does = "OpenCV decodes or changes images", .cure = kImages, .within = true},
    {.library = "imageio", .does = "imageio decodes images", .cure = kImages},
    {.library = "skimage", .does = "scikit-image changes images", .cure = kImages, .within = true},
    {.library = "numpy", .does = "NumPy computes", .cure = kArrays},
    {.library = "numpy.load",
     .does = "numpy.load reads arrays",
     .cure =
         "Load each file once in each worker (in __init__ or at its first item) and not for each "
         "item, or map it to memory (mmap_mode=\"r\", files of .npy)."},
    {.library = "scipy", .does = "SciPy computes", .cure = kArrays},
    {.library = "torch",
     .does = "torch computes",
     .cure = "Apply the transform to a whole batch and not to each item, or once ahead of time; "
             "where there is a GPU, apply it there."},
    {.library = "torch.load",
     .does = "torch.load reads files",
     .cure =
         "Load each file once in each worker and not for each item; torch.save of a view (a slice) "
         "writes its whole storage, so save a clone of it."},
    {.library = "torchvision",
     .does = "torchvision's transforms work",
     .cure = "Apply what is not random once, ahead of the training; apply the rest to a whole "
             "batch (torchvision.transforms.v2), on a GPU where there is one."},
    {.library = "torchaudio", .does = "torchaudio decodes or changes sound", .cure = kSound},
    {.library = "librosa", .does = "librosa decodes or changes sound", .cure = kSound},
    {.library = "soundfile", .does = "soundfile decodes sound", .cure = kSound},
    {.library = "h5py", .does = "h5py reads a file", .cure = kChunks},
    {.library = "zarr", .does = "zarr reads a file", .cure = kChunks},
    {.library = "lmdb",
     .does = "LMDB reads",
     .cure = "Open the environment once in each worker, to read only and without a lock "
             "(readonly=True, lock=False; readahead=False for random reads)."},
    {.library = "sqlite3",
     .does = "SQLite answers queries",
     .cure = "Add an index on the columns of the WHERE clause, ask for a whole batch in one query, "
             "and keep one connection in each worker."},
    {.library = "zipfile", .does = "an archive is unpacked", .cure = kArchive, .within = true},
    {.library = "tarfile", .does = "an archive is unpacked", .cure = kArchive, .within = true},
    {.library = "gzip", .does = "data are unpacked", .cure = kArchive, .within = true},
    {.library = "bz2", .does = "data are unpacked", .cure = kArchive, .within = true},
    {.library = "lzma", .does = "data are unpacked", .cure = kArchive, .within = true},
    {.library = "zlib", .does = "data are unpacked", .cure = kArchive, .within = true},
    {.library = "pickle",
     .does = "objects are unpickled",
     .cure = "Load each file once in each worker and not for each item, or keep arrays (NumPy, "
             "safetensors)."},
    {.library = "json", .does = "JSON is parsed", .cure = kText},
    {.library = "csv", .does = "text is parsed", .cure = kText},
    {.library = "xml", .does = "XML is parsed", .cure = kText},
    {.library = "re", .does = "regular expressions search text", .cure = kText},
    {.library = "tokenizers", .does = "text is tokenized", .cure = kTokens},
    {.library = "transformers", .does = "text is tokenized", .cure = kTokens},
    {.library = "spacy", .does = "text is tokenized", .cure = kTokens},
    {.library = "nltk", .does = "text is tokenized", .cure = kTokens},
    {.library = "os", .does = "files are read", .cure = kFiles},
    {.library = "io", .does = "files are read", .cure = kFiles},
    {.library = "subprocess",
     .does = "other programs are started",
     .cure =
         "Start one program in each worker and not one for each item, or convert the data once.",
     .within = true},
    {.library = "time.sleep",
     .does = "the fetch sleeps",
     .cure = "Leave the sleep out where nothing needs it.",
     .waits = true},
    {.library = "fcntl",
     .does = "it waits for a lock of a file (flock)",
     .cure = kLock,
     .waits = true,
     .locks = true},
    {.library = "multiprocessing.Lock",
     .does = "it waits for a lock that processes share",
     .cure = kLock,
     .waits = true,
     .locks = true},
    {.library = "threading", .does = "it waits for a thread", .cure = kThread, .waits = true},
    {.library = "requests", .does = "it waits for a server", .cure = kServer, .waits = true},
    {.library = "urllib", .does = "it waits for a server", .cure = kServer, .waits = true},
    {.library = "urllib3", .does = "it waits for a server", .cure = kServer, .waits = true},
    {.library = "http", .does = "it waits for a server", .cure = kServer, .waits = true},
    {.library = "socket", .does = "it waits for a server", .cure = kServer, .waits = true},
    {.library = "ssl", .does = "it waits for a server", .cure = kServer, .waits = true},
    {.library = "boto3", .does = "it waits for a server", .cure = kServer, .waits = true},
    {.library = "botocore", .does = "it waits for a server", .cure = kServer, .waits = true},
    {.library = "s3fs", .does = "it waits for a server", .cure = kServer, .waits = true},
    {.library = "gcsfs", .does = "it waits for a server", .cure = kServer, .waits = true},
    {.library = "fsspec", .does = "it waits for a file system", .cure = kServer, .waits = true},
};

constexpr LoaderCure kComputes = {
    .library = "",
    .does = "Python code of the data set computes",
    .cure = "Vectorise it, or do it once ahead of time and keep the result."};
constexpr LoaderCure kWaits = {.library = "",
                               .does = "it waits (a sleep, a lock or a server)",
                               .cure =
                                   "Let several items wait at the same time (more workers, "
                                   "threads, asynchronous requests), or keep the results.",
                               .waits = true};

const LoaderCure* Find(std::string_view library) {
  for (const LoaderCure& cure : kCures) {
    if (cure.library == library) return &cure;
  }
  return nullptr;
}

}  // namespace

const LoaderCure& CureOf(std::string_view library, std::string_view inner, bool waits) {
  if (const LoaderCure* cure = Find(inner); cure != nullptr && cure->within) return *cure;
  // What a library that computes waits for is not told by its name.
  if (const LoaderCure* cure = Find(library); cure != nullptr && cure->waits == waits) return *cure;
  return waits ? kWaits : kComputes;
}

}  // namespace telltale::rules

// SPDX-License-Identifier: Apache-2.0
#include "rules/builtin/loader_cures.h"

namespace telltale::rules {
namespace {

constexpr std::string_view kImages =
    "Resize and convert the images once, ahead of the training, and keep them small (a random crop "
    "may stay in the loader); Image.draft() decodes a JPEG at a smaller size; with a GPU decode "
    "there (torchvision.io.decode_jpeg, DALI).";
constexpr std::string_view kArrays =
    "Vectorise it over the batch, or do it once ahead of time; with a GPU, CuPy or torch computes "
    "it there.";
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

constexpr LoaderCure kCures[] = {
    {"pandas", "pandas works on a table",
     "Read the table once and not for each item, or convert it once to Arrow or NumPy arrays and "
     "give each item by its row; Modin spreads what must stay in pandas over free cores."},
    {"polars", "polars works on a table",
     "Convert the table once to arrays, and give each item by "
     "its row."},
    {"pyarrow", "pyarrow works on a table",
     "Read row groups once in each worker, and give each item by its row."},
    {"PIL", "PIL decodes or changes images", kImages},
    {"cv2", "OpenCV decodes or changes images", kImages},
    {"imageio", "imageio decodes images", kImages},
    {"skimage", "scikit-image changes images", kImages},
    {"numpy", "NumPy computes", kArrays},
    {"scipy", "SciPy computes", kArrays},
    {"torch", "torch computes",
     "Apply the transform to a whole batch and not to each item, or do it once ahead of time; with "
     "a GPU, there."},
    {"torchvision", "torchvision's transforms work",
     "Do what is not random once, ahead of the training; apply the rest to a whole batch "
     "(torchvision.transforms.v2), with a GPU there."},
    {"torchaudio", "torchaudio decodes or changes sound", kSound},
    {"librosa", "librosa decodes or changes sound", kSound},
    {"soundfile", "soundfile decodes sound", kSound},
    {"h5py", "h5py reads a file", kChunks},
    {"zarr", "zarr reads a file", kChunks},
    {"lmdb", "LMDB reads",
     "Open the environment once in each worker, without a lock "
     "(lock=False, readahead=False)."},
    {"sqlite3", "SQLite answers queries",
     "Add an index on what is asked for, ask for a whole batch in one query, and keep one "
     "connection in each worker."},
    {"zipfile", "an archive is unpacked", kArchive},
    {"tarfile", "an archive is unpacked", kArchive},
    {"gzip", "data are unpacked", kArchive},
    {"bz2", "data are unpacked", kArchive},
    {"lzma", "data are unpacked", kArchive},
    {"zlib", "data are unpacked", kArchive},
    {"pickle", "objects are unpickled",
     "Load them once in each worker and not for each item, or keep arrays (NumPy, safetensors)."},
    {"json", "JSON is parsed", kText},
    {"csv", "text is parsed", kText},
    {"xml", "XML is parsed", kText},
    {"re", "regular expressions search text", kText},
    {"tokenizers", "text is tokenized", kTokens},
    {"transformers", "text is tokenized", kTokens},
    {"spacy", "text is tokenized", kTokens},
    {"nltk", "text is tokenized", kTokens},
    {"subprocess", "other programs are started",
     "Start one program in each worker and not one for each item, or convert the data once."},
    {"time.sleep", "it sleeps",
     "A loader that sleeps needs no core: more workers than cores are right.", true},
    {"threading", "it waits for a lock or a thread",
     "Keep one handle in each worker (opened at its first item), so that no lock is shared.", true},
    {"requests", "it waits for a server", kServer, true},
    {"urllib", "it waits for a server", kServer, true},
    {"urllib3", "it waits for a server", kServer, true},
    {"http", "it waits for a server", kServer, true},
    {"socket", "it waits for a server", kServer, true},
    {"ssl", "it waits for a server", kServer, true},
    {"boto3", "it waits for a server", kServer, true},
    {"botocore", "it waits for a server", kServer, true},
    {"s3fs", "it waits for a server", kServer, true},
    {"gcsfs", "it waits for a server", kServer, true},
    {"fsspec", "it waits for a file system", kServer, true},
};

constexpr LoaderCure kComputes = {"", "Python code of the data set computes",
                                  "Vectorise it, or do it once ahead of time and keep the result."};
constexpr LoaderCure kWaits = {
    "", "it waits (a sleep, a lock or a server)",
    "Make the waits of several items run beside each other, or keep what is waited for.", true};

}  // namespace

const LoaderCure& CureOf(std::string_view library, bool waits) {
  for (const LoaderCure& cure : kCures) {
    // A library that computes and one that is waited for have different cures.
    if (cure.library == library && (cure.waits == waits || !waits)) return cure;
  }
  return waits ? kWaits : kComputes;
}

}  // namespace telltale::rules

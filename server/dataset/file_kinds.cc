// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/file_kinds.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <initializer_list>
#include <string>
#include <vector>

#include "common/base/ascii_case.h"
#include "common/base/quote.h"

namespace pinfeed {
namespace {

struct Kind {
  std::vector<std::string_view> extensions;
  std::string_view advice;
};

const std::vector<Kind>& Kinds() {
  static const std::vector<Kind> kinds = {
      {{".csv", ".tsv", ".jsonl", ".ndjson"},
       "a table with one row per sample is opened by its own name: open DIR/NAME"},
      {{".json"},
       "a table must have one JSON object per line (.jsonl), or be .csv or .tsv: convert it, and open the "
       "result"},
      {{".parquet", ".arrow", ".feather", ".xlsx", ".sqlite"},
       "tables of this kind are not supported: save each column as an array of its own with numpy.save, such "
       "as DIR/x.npy and DIR/label.npy (text as token ids in a .bin file of uint16), and open DIR; or write "
       "the table as .jsonl (with pandas, to_json(FILE, orient=\"records\", lines=True)), or read it in a "
       "Dataset of yours with pinfeed.DataLoader"},
      {{".npz"},
       "unpack it into a directory of its own (unzip FILE -d DIR), where each array becomes a .npy file, and "
       "open DIR"},
      {{".tar.gz", ".tgz", ".tar.zst", ".tar.zstd", ".tar.xz", ".txz", ".tar.bz2", ".tbz2", ".tar.lz4",
        ".zip", ".7z", ".rar"},
       "compressed archives are not supported: uncompress shards (gunzip FILE) and open the .tar files; or "
       "unpack them into one directory (tar -xf FILE -C DIR, unzip FILE -d DIR), arrange the images as "
       "DIR/<class>/<image>, and open DIR"},
      {{".h5",  ".hdf5",  ".lmdb", ".mdb",    ".mat",         ".nc",       ".zarr",
        ".pt",  ".pth",   ".pkl",  ".pickle", ".safetensors", ".tfrecord", ".tfrecords",
        ".rec", ".beton", ".nii",  ".nii.gz", ".dcm",         ".mds"},
       "files of this kind are not supported: save each of their arrays with numpy.save, such as "
       "DIR/image.npy and "
       "DIR/label.npy, all with one row per sample, and open DIR; or read them in a Dataset of yours with "
       "pinfeed.DataLoader"},
      {{".gz", ".xz", ".zst", ".zstd", ".bz2"}, "it is compressed: uncompress it, and open the result"},
      {{".txt"},
       "text is not supported: save it as token ids, such as numpy.array(ids, "
       "\"uint16\").tofile(\"tokens.bin\"), "
       "and open that with a sequence_length"},
  };
  return kinds;
}

bool IsOneOf(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::ranges::any_of(names, [&](std::string_view other) { return EqualsIgnoringCase(name, other); });
}

}  // namespace

bool HasExtension(std::string_view name, std::span<const std::string_view> extensions) {
  return std::ranges::any_of(extensions, [&](std::string_view extension) {
    return name.size() >= extension.size() &&
           EqualsIgnoringCase(name.substr(name.size() - extension.size()), extension);
  });
}

bool IsNamedAsImage(std::string_view name) {
  return HasExtension(name, kImageExtensions) || HasExtension(name, kUnsupportedImageExtensions);
}

bool IsOfMacos(std::string_view name) {
  return name.starts_with("._");
}

bool IsNamedAsTable(std::string_view name) {
  constexpr std::array<std::string_view, 4> kExtensions = {".csv", ".tsv", ".jsonl", ".ndjson"};
  return HasExtension(name, kExtensions);
}

bool IsNamedAsOtherTable(std::string_view name) {
  constexpr std::array<std::string_view, 4> kExtensions = {".json", ".parquet", ".arrow", ".feather"};
  return HasExtension(name, kExtensions);
}

std::string_view AdviceFor(std::string_view name) {
  for (const Kind& kind : Kinds())
    if (HasExtension(name, kind.extensions)) return kind.advice;
  return {};
}

bool IsSplitName(std::string_view name) {
  const size_t end = std::min(name.find_first_of("_-0123456789"), name.size());
  if (!IsOneOf(name.substr(0, end),
               {"train", "training", "val", "valid", "validation", "test", "testing", "dev", "eval"}))
    return false;
  const std::string_view rest =
      name.substr(std::min(name.find_first_not_of("_-0123456789", end), name.size()));
  return rest.empty() || IsOneOf(rest, {"image", "images", "img", "imgs", "set", "data", "split"});
}

bool IsImagesName(std::string_view name) {
  return IsOneOf(name, {"image", "images", "img", "imgs", "input", "inputs", "jpegimages"});
}

bool IsMasksName(std::string_view name) {
  return IsOneOf(
      name, {"mask", "masks", "label", "labels", "annotation", "annotations", "segmentation", "segmentations",
             "segmentationclass", "segmentationobject", "target", "targets", "gt"});
}

bool IsMetadataName(std::string_view name) {
  return name == "metadata.jsonl" || name == "metadata.csv";
}

bool IsFieldName(std::string_view name) {
  return !name.empty() && IsUtf8(name) && EscapeName(name) == name;
}

Status ExplainMissing(const Status& missing, std::string_view path) {
  if (missing.native_error() == EACCES) {
    return Status(Code::kPermissionDenied,
                  missing.message() + "; the daemon reads it as user " + std::to_string(::geteuid()) +
                      ": let this user read the data and search the folders above",
                  EACCES);
  }
  if (missing.code() != Code::kNotFound) return missing;
  if (path.find_first_of("*?{") != std::string_view::npos) {
    const std::string_view advice = AdviceFor(path.substr(0, path.find_last_not_of("*?{}[]") + 1));
    return NotFound(missing.message() +
                    "; patterns are not expanded: a dataset is one directory or one file, so give its path" +
                    (advice.empty() ? std::string() : "; " + std::string(advice)));
  }
  if (path.find("/~") != std::string_view::npos) {
    return NotFound(missing.message() +
                    "; \"~\" is not expanded: give the path with the home directory written out "
                    "(os.path.expanduser in Python)");
  }
  return NotFound(missing.message() + "; the daemon, which may be in a container, sees nothing there");
}

}  // namespace pinfeed

// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/formats/image_index.h"

#include <algorithm>

#include "common/base/ascii_case.h"
#include "common/base/log.h"
#include "common/base/quote.h"
#include "common/os/freed_memory.h"
#include "server/dataset/file_kinds.h"
#include "server/dataset/name_order.h"

namespace pinfeed {
namespace {

constexpr uint64_t kLargeIndexBytes = uint64_t{1} << 20;

// Whether a directory looks like a dataset: it has class folders and no images, or a table of its images.
Result<bool> HoldsClassFolders(const Location& base, const std::string& name) {
  bool has_folder = false;
  bool has_image = false;
  bool has_table = false;
  const auto visit = [&](const DirectoryEntry& entry) -> Status {
    if (entry.kind == EntryKind::kDirectory)
      has_folder = true;
    else if (IsNamedAsImage(entry.name))
      has_image = true;
    else if (IsMetadataName(entry.name))
      has_table = true;
    return OkStatus();
  };
  ASSIGN_OR_RETURN([[maybe_unused]] const NodeId id, base.List(name, visit));
  return has_table || (has_folder && !has_image);
}

// A directory of splits (train, val, ...) would be read as a dataset with the classes "train" and "val". A
// class may still have such a name if it is the only class and holds images, or one of several classes.
Status CheckNotSplits(const Location& base, const std::vector<std::string>& classes) {
  std::string split_names;
  std::string example;
  size_t splits = 0;
  size_t with_classes = 0;
  for (const std::string& name : classes) {
    if (!IsSplitName(name)) continue;
    ASSIGN_OR_RETURN(const bool has_classes, HoldsClassFolders(base, name));
    split_names += (splits++ == 0 ? "" : ", ") + QuotePath(name);
    if (has_classes) ++with_classes;
    if (example.empty() || name.starts_with("train")) example = name;
  }
  const bool only_splits = splits == classes.size() && (splits > 1 || with_classes > 0);
  if (!only_splits && with_classes < 2) return OkStatus();
  return InvalidArgument("image folder " + QuotePath(base.path()) + " holds the splits of a dataset (" +
                         split_names + ") instead of class folders; name one split, such as " +
                         QuotePath(base.FullPath(example)));
}

// What to do with data that class folders cannot tell.
constexpr std::string_view kOtherData =
    "if the dataset has boxes, texts or several labels for an image, list the images in a table (a .jsonl "
    "with the path as file_name, and boxes as [[x, y, w, h], ...]) and open that; other data are read in a "
    "Dataset of yours with pinfeed.DataLoader";

// images/ next to masks/ would be read as a dataset of two classes, and JPEGImages/, of Pascal VOC, next to
// others as one of several.
Status CheckNotMasks(const Location& base, const std::vector<std::string>& classes) {
  const auto images = std::ranges::find_if(classes, IsImagesName);
  const auto masks = std::ranges::find_if(classes, IsMasksName);
  if (images == classes.end() || masks == classes.end()) return OkStatus();
  if (classes.size() != 2 && !EqualsIgnoringCase(*images, "JPEGImages")) return OkStatus();
  return InvalidArgument("image folder " + QuotePath(base.path()) + " holds images and their masks (" +
                         QuotePath(*images) + ", " + QuotePath(*masks) +
                         ") instead of class folders; write both as arrays, image.npy and mask.npy, into a "
                         "directory of their own, and open that with masks naming 'mask'; " +
                         std::string(kOtherData));
}

std::string UnseenText(const Location& base) {
  return "while the dataset stays open, files that are added or removed below may not be seen until " +
         QuotePath(base.path()) + " itself is touched";
}

// Whether an entry that is not a directory is an image. Other kinds of files are ignored.
Result<bool> IsImage(const Location& base, std::string_view directory, const DirectoryEntry& entry) {
  const auto object = [&] {
    return "image folder entry " + QuotePath(base.FullPath(JoinPath(directory, entry.name)));
  };
  if (!HasExtension(entry.name, kImageExtensions)) {
    if (!HasExtension(entry.name, kUnsupportedImageExtensions)) return false;
    return InvalidArgument(
        object() + " is an image of an unsupported format; convert it to JPEG, PNG or WebP, or move it away");
  }
  if (entry.kind == EntryKind::kDangling)
    return NotFound(object() + " is a dangling symbolic link; repair or remove it");
  if (entry.kind != EntryKind::kFile)
    return InvalidArgument(object() + " is not a regular file; move it away");
  return true;
}

}  // namespace

Result<ImageIndex> ImageIndex::Build(const Location& base, IndexStore* store) {
  IndexMemory memory;
  const auto ask = [&](uint64_t bytes) {
    return memory.Add(bytes).WithContext("index " + QuotePath(base.path()));
  };
  ImageIndex index;
  std::string stray_image;
  uint64_t bytes = 0;
  const auto visit = [&](const DirectoryEntry& entry) -> Status {
    if (entry.kind == EntryKind::kDirectory && entry.name == "__MACOSX")
      return InvalidArgument("image folder " + QuotePath(base.path()) + ": remove " + QuotePath(entry.name) +
                             ", which macOS adds to archives");
    if (entry.kind == EntryKind::kDirectory) {
      bytes += entry.name.size() + sizeof(std::string);
      if (bytes > PackedNames::kMaxBytes) return FolderScan::TooLarge(base);
      // They are also the classes of the dataset and what the scan starts at, and the list may move.
      RETURN_IF_ERROR(ask(3 * entry.name.size() + 6 * sizeof(std::string)));
      index.classes_.emplace_back(entry.name);
    } else if (stray_image.empty() && IsNamedAsImage(entry.name)) {
      stray_image = entry.name;
    }
    return OkStatus();
  };
  ASSIGN_OR_RETURN(const NodeId root, base.List("", visit));
  if (index.classes_.empty()) {
    const std::string object = "image folder " + QuotePath(base.path());
    if (!stray_image.empty()) {
      return InvalidArgument(
          object + " holds images (such as " + QuotePath(stray_image) +
          ") but no class folders; arrange them as <class>/<image>, or move all into one folder below it "
          "if they have no labels");
    }
    return InvalidArgument(object +
                           " holds no class folders; expected <class>/<image>.jpg, .jpeg, .png or .webp");
  }
  SortByName(index.classes_);
  RETURN_IF_ERROR(CheckNotSplits(base, index.classes_));
  RETURN_IF_ERROR(CheckNotMasks(base, index.classes_));
  const auto take = [&](std::string_view directory, const DirectoryEntry& entry) {
    return IsImage(base, directory, entry);
  };
  std::vector<std::vector<FolderScan::Folder>> found;
  {
    FolderScan scan(base, root, take, {.store = store});
    ASSIGN_OR_RETURN(found, scan.Run(index.classes_));
    index.checked_ = scan.TakeListed();
  }
  if (index.checked_) index.LimitChecked(base);
  uint64_t images = 0;
  uint64_t names_bytes = 0;
  uint64_t folders = 0;
  for (size_t label = 0; label < found.size(); ++label) {
    if (found[label].empty()) {
      return InvalidArgument("image folder " + QuotePath(base.path()) + ": class folder " +
                             QuotePath(index.classes_[label]) +
                             " holds no image (.jpg, .jpeg, .png, .webp); add images or remove the folder; " +
                             std::string(kOtherData));
    }
    folders += found[label].size();
    for (const FolderScan::Folder& folder : found[label]) {
      images += folder.names.size();
      names_bytes += folder.names.bytes();
    }
  }
  if (names_bytes > PackedNames::kMaxBytes) return FolderScan::TooLarge(base);
  const uint64_t copied = PackedNames::MemoryOf(images, names_bytes) + folders * sizeof(Directory);
  if (copied > kLargeIndexBytes) ReturnFreedMemory();  // of the scan
  RETURN_IF_ERROR(ask(copied));
  index.names_.Reserve(images, names_bytes);
  index.directories_.reserve(folders);
  for (uint32_t label = 0; label < found.size(); ++label)
    for (FolderScan::Folder& folder : found[label]) index.Add(std::move(folder), label);
  return index;
}

void ImageIndex::LimitChecked(const Location& base) {
  if (checked_->size() <= kMaxChecked) return;
  spdlog::warn("{} has {} folders to look at, more than {}: {}", QuotePath(base.path()), checked_->size(),
               kMaxChecked, UnseenText(base));
  checked_.emplace();
}

bool ImageIndex::IsCurrent(const Location& base) const {
  if (!checked_) return false;
  const auto until = std::chrono::steady_clock::now() + kMaxCheckTime;
  for (const FolderScan::Listed& folder : *checked_) {
    if (std::chrono::steady_clock::now() > until) {
      spdlog::warn("looking for changes in the {} folders of {} took more than {} s: {}", checked_->size(),
                   QuotePath(base.path()), kMaxCheckTime.count(), UnseenText(base));
      break;
    }
    bool equal = false;
    const auto compare = [&](const NodeVersion& version) {
      equal = version == folder.version;
      return true;
    };
    const auto never = [](const DirectoryEntry&) { return Internal("visited"); };
    if (!base.List(folder.path, never, compare).ok() || !equal) return false;
  }
  return true;
}

void ImageIndex::Add(FolderScan::Folder folder, uint32_t label) {
  for (uint64_t i = 0; i < folder.names.size(); ++i)
    longest_path_ = std::max(longest_path_, folder.path.size() + 1 + folder.names[i].size());
  names_.Append(folder.names);
  directories_.push_back({std::move(folder.path), label, names_.size()});
}

const ImageIndex::Directory& ImageIndex::DirectoryOf(uint64_t id) const {
  PF_CHECK(id < samples(), "sample id out of range");
  return *std::ranges::upper_bound(directories_, id, {}, &Directory::end);
}

std::string ImageIndex::Path(uint64_t id) const {
  return JoinPath(DirectoryOf(id).path, names_[id]);
}

std::string ImageIndex::FingerprintHex() const {
  Fingerprint fingerprint;
  fingerprint.Add("image_folder").Add(samples()).Add(uint64_t{classes_.size()});
  uint64_t id = 0;
  for (const Directory& directory : directories_) {
    fingerprint.Add(directory.path).Add(directory.label).Add(directory.end);
    for (; id < directory.end; ++id) fingerprint.Add(names_[id]);
  }
  return fingerprint.Hex();
}

}  // namespace pinfeed

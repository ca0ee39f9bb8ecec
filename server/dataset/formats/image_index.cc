// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/formats/image_index.h"

#include <algorithm>
#include <map>

#include "common/base/quote.h"
#include "server/dataset/file_kinds.h"
#include "server/dataset/name_order.h"

namespace pinfeed {
namespace {

Status TooLarge(const Location& base) {
  return ResourceExhausted("index " + QuotePath(base.path()) + ": the names of its files exceed " +
                           std::to_string(PackedNames::kMaxBytes) + " bytes; split the dataset");
}

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

// images/ next to masks/ would be read as a dataset of two classes.
Status CheckNotMasks(const Location& base, const std::vector<std::string>& classes) {
  if (classes.size() != 2) return OkStatus();
  const auto masks = std::ranges::find_if(classes, IsMasksName);
  if (masks == classes.end() || std::ranges::find_if(classes, IsImagesName) == classes.end())
    return OkStatus();
  return InvalidArgument("image folder " + QuotePath(base.path()) + " holds images and their masks (" +
                         QuotePath(classes[0]) + ", " + QuotePath(classes[1]) +
                         ") instead of class folders; write both as arrays, image.npy and mask.npy, into a "
                         "directory of their own, and open that with masks naming 'mask'");
}

// Whether an entry that is not a directory is an image. Other kinds of files are ignored.
Result<bool> IsImage(const Location& base, std::string_view directory, const DirectoryEntry& entry) {
  const auto object = [&] {
    return "image folder entry " + QuotePath(base.FullPath(JoinPath(directory, entry.name)));
  };
  if (HasExtension(entry.name, kUnsupportedImageExtensions)) {
    return InvalidArgument(
        object() + " is an image of an unsupported format; convert it to JPEG or PNG, or move it away");
  }
  if (!HasExtension(entry.name, kImageExtensions)) return false;
  if (entry.kind == EntryKind::kDangling)
    return NotFound(object() + " is a dangling symbolic link; repair or remove it");
  if (entry.kind != EntryKind::kFile)
    return InvalidArgument(object() + " is not a regular file; move it away");
  return true;
}

}  // namespace

Result<ImageIndex> ImageIndex::Build(const Location& base) {
  ImageIndex index;
  std::string stray_image;
  uint64_t bytes = 0;
  const auto visit = [&](const DirectoryEntry& entry) -> Status {
    if (entry.kind == EntryKind::kDirectory) {
      bytes += entry.name.size() + sizeof(std::string);
      if (bytes > PackedNames::kMaxBytes) return TooLarge(base);
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
    return InvalidArgument(object + " holds no class folders; expected <class>/<image>.jpg, .jpeg or .png");
  }
  SortByName(index.classes_);
  RETURN_IF_ERROR(CheckNotSplits(base, index.classes_));
  RETURN_IF_ERROR(CheckNotMasks(base, index.classes_));
  for (uint32_t label = 0; label < index.classes_.size(); ++label)
    RETURN_IF_ERROR(index.AddClass(base, root, label));
  index.names_.ShrinkToFit();
  return index;
}

Status ImageIndex::AddClass(const Location& base, const NodeId& root, uint32_t label) {
  // The directories that were visited, with their paths. Visiting one twice means a cycle of symbolic links,
  // or an image that would be in the class twice. Without this check, the walk might never end.
  std::map<NodeId, std::string> seen = {{root, ""}};
  struct Found {
    std::string path;
    std::vector<std::string> names;
  };
  std::vector<std::string> pending = {classes_[label]};
  std::vector<Found> found;
  uint64_t bytes = 0;
  while (!pending.empty()) {
    Found directory;
    directory.path = std::move(pending.back());
    pending.pop_back();
    const auto visit = [&](const DirectoryEntry& entry) -> Status {
      bool take = entry.kind == EntryKind::kDirectory;
      if (take) {
        pending.push_back(JoinPath(directory.path, entry.name));
        bytes += pending.back().size() + sizeof(Found);
      } else {
        ASSIGN_OR_RETURN(take, IsImage(base, directory.path, entry));
        if (take) directory.names.emplace_back(entry.name);
        if (take) bytes += entry.name.size() + sizeof(std::string);
      }
      return bytes + names_.bytes() > PackedNames::kMaxBytes ? TooLarge(base) : OkStatus();
    };
    ASSIGN_OR_RETURN(const NodeId id, base.List(directory.path, visit));
    const auto [earlier, is_new] = seen.emplace(id, directory.path);
    if (!is_new) {
      return InvalidArgument("image folder " + QuotePath(base.path()) + ": " + QuotePath(directory.path) +
                             " leads by a symbolic link to the same directory as " +
                             (earlier->second.empty() ? "the dataset itself" : QuotePath(earlier->second)) +
                             "; remove the link");
    }
    if (!directory.names.empty()) found.push_back(std::move(directory));
  }
  if (found.empty()) {
    return InvalidArgument("image folder " + QuotePath(base.path()) + ": class folder " +
                           QuotePath(classes_[label]) +
                           " holds no image (.jpg, .jpeg, .png); add images or remove the folder");
  }
  SortByName(found, &Found::path);
  for (Found& directory : found)
    RETURN_IF_ERROR(AddDirectory(base, std::move(directory.path), label, directory.names));
  return OkStatus();
}

Status ImageIndex::AddDirectory(const Location& base, std::string path, uint32_t label,
                                std::vector<std::string>& names) {
  SortByName(names);
  for (const std::string& name : names) {
    if (names_.bytes() + name.size() > PackedNames::kMaxBytes) return TooLarge(base);
    names_.Add(name);
    longest_path_ = std::max(longest_path_, path.size() + 1 + name.size());
  }
  directories_.push_back({std::move(path), label, names_.size()});
  return OkStatus();
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

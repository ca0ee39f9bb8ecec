// SPDX-License-Identifier: Apache-2.0
// The format "image_folder": path/<class>/**/<image>. In: a directory. Out: the fields "image" (the file's
// bytes) and "label" (int64 scalar).
#include <cstring>
#include <memory>
#include <string>

#include "common/base/quote.h"
#include "server/dataset/formats/image_index.h"
#include "server/dataset/formats/registry.h"

namespace pinfeed {
namespace {

constexpr size_t kImageFieldIndex = 0;
constexpr size_t kLabelFieldIndex = 1;
constexpr size_t kPathFieldIndex = 2;

// Purpose: the Dataset of an image folder. Owns: the root's descriptor and the index. Each read opens its
// file, so the number of descriptors does not depend on the number of files. Threads and errors: as Dataset.
class ImageFolder final : public Dataset {
 public:
  ImageFolder(std::shared_ptr<const Location> base, ImageIndex index, DatasetInfo info)
      : base_(std::move(base)), index_(std::move(index)), info_(std::move(info)) {}

  const DatasetInfo& info() const override { return info_; }

  Status ReadTensor(uint64_t id, size_t field, std::span<std::byte> out) const override {
    PF_CHECK(field == kLabelFieldIndex && out.size() == sizeof(int64_t),
             "image_folder has one tensor field, an int64 scalar");
    const int64_t label = index_.Label(id);
    std::memcpy(out.data(), &label, sizeof(label));
    return OkStatus();
  }

  Status ReadBytes(uint64_t id, size_t field, std::vector<std::byte>& out) const override {
    if (field == kPathFieldIndex) {
      const std::string path = index_.Path(id);
      const std::span<const std::byte> bytes = std::as_bytes(std::span(path));
      out.assign(bytes.begin(), bytes.end());
      return OkStatus();
    }
    ASSIGN_OR_RETURN(const auto file, OpenImage(id, field));
    return file->ReadAll(kMaxImageFileBytes, out);
  }

  Result<std::unique_ptr<const RandomAccessFile>> OpenImage(uint64_t id, size_t field) const override {
    PF_CHECK(field == kImageFieldIndex, "image_folder has one encoded field");
    return base_->OpenFile(index_.Path(id));
  }

  bool IsCurrent() const override { return index_.IsCurrent(*base_); }

  std::string Describe(uint64_t id) const override { return EscapeName(base_->FullPath(index_.Path(id))); }

 private:
  const std::shared_ptr<const Location> base_;
  const ImageIndex index_;
  const DatasetInfo info_;
};

// Lists `base` and the directories below it, except those that `store` knows. Sample i is sample i of
// torchvision's ImageFolder: classes in Python's order of their names, within a class ordered by (directory,
// file name), including nested directories. Files of other kinds are ignored. Images of an unsupported kind
// (.bmp, .tif, ...), dangling links to images and classes without images are errors that name them, so
// samples never go missing silently.
Result<std::shared_ptr<const Dataset>> OpenImageFolder(std::shared_ptr<const Location> base, DatasetInfo info,
                                                       IndexStore* store) {
  ASSIGN_OR_RETURN(ImageIndex index, ImageIndex::Build(*base, store));
  info.samples = index.samples();
  info.fingerprint = index.FingerprintHex();
  info.fields = {{{"image", DType::kUnspecified, {}}, FieldKind::kEncodedImage},
                 {{"label", DType::kInt64, {}}, FieldKind::kTensor},
                 SamplePathField(index.longest_path())};
  info.classes = index.classes();
  return std::make_shared<const ImageFolder>(std::move(base), std::move(index), std::move(info));
}

class ImageFolderDatasetFormat final : public DatasetFormat {
 public:
  std::string_view name() const override { return "image_folder"; }
  std::optional<std::string> Recognise(const DatasetContents& contents,
                                       const ParameterMap& /*options*/) const override {
    if (!contents.folder.empty()) return "folders (such as " + QuotePath(contents.folder) + ")";
    // Open refuses images without class folders and says why.
    if (contents.image.empty() || !contents.npy_file.empty() || !contents.tar_file.empty() ||
        !contents.metadata.empty())
      return std::nullopt;
    return "images (such as " + QuotePath(contents.image) + ")";
  }
  Result<std::shared_ptr<const Dataset>> Open(std::shared_ptr<const Location> location,
                                              const DatasetContents& contents, DatasetInfo info,
                                              ParameterReader& /*options*/,
                                              IndexStore* store) const override {
    if (contents.is_directory) return OpenImageFolder(std::move(location), std::move(info), store);
    return InvalidArgument("image folder " + QuotePath(contents.path) +
                           " is a file; name the directory that holds the class folders");
  }
};

}  // namespace

const DatasetFormat& ImageFolderFormat() {
  static const ImageFolderDatasetFormat format;
  return format;
}

}  // namespace pinfeed

// SPDX-License-Identifier: Apache-2.0
#include "server/loading/encoded_images.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <utility>

#include "common/base/quote.h"
#include "server/dataset/image_file.h"
#include "server/memory/host_memory_ledger.h"

namespace pinfeed {
namespace {

std::string DescribeImage(uint64_t sample) {
  return sample >= kNoIndex ? "a sample without an index" : "sample " + std::to_string(sample);
}

Status BadTable(const std::string& what) {
  return Internal("the table of a batch's encoded images: " + what +
                  "; are the producer's package and the daemon of the same version?");
}

Status CheckRow(const EncodedImageRow& image, uint64_t field_bytes) {
  const std::string name = "the image of " + DescribeImage(image.sample);
  if (image.offset > field_bytes || image.length > field_bytes - image.offset) {
    return BadTable(name + " has " + std::to_string(image.length) + " bytes at " +
                    std::to_string(image.offset) + ", outside of the field's " + std::to_string(field_bytes));
  }
  if (image.kind == EncodedImageRow::kFile) {
    if (image.length > 0 && image.length <= kMaxImageFileBytes) return OkStatus();
    return BadTable(name + " has " + std::to_string(image.length) + " bytes, possible are 1 to " +
                    std::to_string(kMaxImageFileBytes));
  }
  if (image.kind != EncodedImageRow::kPath)
    return BadTable(name + " is of the unknown kind " + std::to_string(image.kind));
  if (image.length > 0 && image.length < PATH_MAX) return OkStatus();
  return BadTable(name + " has a path of " + std::to_string(image.length) + " bytes, possible are 1 to " +
                  std::to_string(PATH_MAX - 1));
}

}  // namespace

// Purpose: stands for what producers hand over, in the loader. Has one field, an encoded image.
class EncodedImages::Files final : public Dataset {
 public:
  explicit Files(std::string name) {
    info_.format = "produced";
    info_.path = std::move(name);
    info_.samples = 1;
    info_.fields.push_back({{std::string(kImagesTensor), DType::kUnspecified, {}}, FieldKind::kEncodedImage});
  }
  const DatasetInfo& info() const override { return info_; }
  Status ReadTensor(uint64_t, size_t, std::span<std::byte>) const override { return NoField(); }
  Status ReadBytes(uint64_t, size_t, std::vector<std::byte>&) const override { return NoField(); }
  std::string Describe(uint64_t id) const override { return DescribeImage(id); }

 private:
  static Status NoField() { return Internal("a producer's image is read by its row"); }
  DatasetInfo info_;
};

// Purpose: one image that a producer has handed over. Borrows all it is given.
class EncodedImages::File final : public Dataset {
 public:
  // `path`: empty for one whose bytes are there.
  File(const Dataset& files, const std::string& path, const std::vector<std::string>& roots,
       std::span<const std::byte> bytes)
      : files_(files), path_(path), roots_(roots), bytes_(bytes) {}
  const DatasetInfo& info() const override { return files_.info(); }
  Status ReadTensor(uint64_t id, size_t field, std::span<std::byte> out) const override {
    return files_.ReadTensor(id, field, out);
  }
  Status ReadBytes(uint64_t /*id*/, size_t /*field*/, std::vector<std::byte>& out) const override {
    if (!path_.empty()) return ReadImageFile(path_, roots_, out);
    RETURN_IF_ERROR(ResizeForSample(bytes_.size(), out));
    std::ranges::copy(bytes_, out.begin());
    return OkStatus();
  }
  std::string Describe(uint64_t id) const override { return files_.Describe(id); }

 private:
  const Dataset& files_;
  const std::string& path_;
  const std::vector<std::string>& roots_;
  const std::span<const std::byte> bytes_;
};

EncodedImages::EncodedImages(uint32_t most, std::vector<std::string> roots,
                             std::unique_ptr<const SampleLoader> loader, TensorSpec tensor,
                             uint64_t image_bytes)
    : most_(most),
      roots_(std::move(roots)),
      loader_(std::move(loader)),
      tensor_(std::move(tensor)),
      image_bytes_(image_bytes) {}

Result<std::unique_ptr<const EncodedImages>> EncodedImages::Create(const FeedSpec& spec,
                                                                   std::vector<std::string> roots) {
  auto files = std::make_shared<const Files>(spec.dataset.produced->name);
  ASSIGN_OR_RETURN(std::unique_ptr<SampleLoader> loader, SampleLoader::Create(std::move(files), spec));
  TensorSpec tensor = loader->outputs().front();
  ASSIGN_OR_RETURN(const uint64_t image_bytes, tensor.SampleBytes());
  tensor.shape.insert(tensor.shape.begin(), spec.encoded_images);
  return std::unique_ptr<const EncodedImages>(new EncodedImages(
      spec.encoded_images, std::move(roots), std::move(loader), std::move(tensor), image_bytes));
}

Result<std::vector<EncodedImageRow>> EncodedImages::ReadTable(std::span<const std::byte> field) const {
  uint64_t at = 0;
  std::memcpy(&at, field.data() + kImageTableAt, sizeof at);
  std::vector<EncodedImageRow> rows;
  if (at == 0) return rows;
  if (at > field.size() || field.size() - at < sizeof(EncodedImageRow)) {
    return BadTable("it begins at " + std::to_string(at) + ", outside of the field's " +
                    std::to_string(field.size()) + " bytes");
  }
  EncodedImageRow head;
  std::memcpy(&head, field.data() + at, sizeof head);
  const uint64_t count = head.sample;
  if (count > most_) {
    return Status(Code::kOutOfRange, "the batch has " + std::to_string(count) +
                                         " encoded images, and the feed has places for " +
                                         std::to_string(most_));
  }
  if (count > (field.size() - at) / sizeof(EncodedImageRow) - 1) {
    return BadTable(std::to_string(count) + " rows at " + std::to_string(at) +
                    " do not fit into the field's " + std::to_string(field.size()) + " bytes");
  }
  rows.resize(count);
  if (count != 0) std::memcpy(rows.data(), field.data() + at + sizeof head, count * sizeof(EncodedImageRow));
  for (const EncodedImageRow& image : rows) RETURN_IF_ERROR(CheckRow(image, field.size()));
  return rows;
}

Status EncodedImages::Load(const EncodedImageRow& image, std::span<const std::byte> field,
                           std::span<std::byte> place, SampleScratch& scratch, SampleTimes& times) const {
  const std::span<const std::byte> bytes = field.subspan(image.offset, image.length);
  std::string path;
  if (image.kind == EncodedImageRow::kPath) {
    path.resize(bytes.size());
    std::memcpy(path.data(), bytes.data(), bytes.size());
  }
  const File file(loader_->dataset(), path, roots_, bytes);
  const std::vector<std::span<std::byte>> places{place};
  Status status = loader_->LoadFrom(file, {image.sample, image.draw}, SamplePlaces(places), scratch, times);
  const std::string name = QuotePath(path);
  if (status.ok() || path.empty() || status.message().find(name) != std::string::npos) return status;
  return status.WithContext(name);
}

}  // namespace pinfeed

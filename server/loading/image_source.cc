// SPDX-License-Identifier: Apache-2.0
#include "server/loading/image_source.h"

#include <algorithm>

namespace pinfeed {

Prefetched ImageSource::Prefetch(const Dataset& dataset, uint64_t id) const {
  const Result<std::unique_ptr<const RandomAccessFile>> file = dataset.OpenImage(id, field_);
  if (!file.ok() || *file == nullptr) return {};  // Read says why
  if (head_ != nullptr) {
    const std::optional<FileVersion> version = (*file)->version();
    if (version && head_->Has(*version)) return {};
  }
  return (*file)->Prefetch(0, std::min((*file)->size(), kMaxImageFileBytes));
}

std::optional<CacheableFile> ImageSource::ReadToKeep(const Dataset& dataset, uint64_t id,
                                                     uint64_t max_bytes) const {
  const Result<std::unique_ptr<const RandomAccessFile>> opened = dataset.OpenImage(id, field_);
  if (!opened.ok() || *opened == nullptr) return std::nullopt;
  const RandomAccessFile& file = **opened;
  const std::optional<FileVersion> version = file.version();
  if (!version || file.size() > max_bytes || head_->Has(*version)) return std::nullopt;
  CacheableFile read{id, *version, {}};
  if (!file.ReadAll(max_bytes, read.encoded).ok()) return std::nullopt;
  return read;
}

bool ImageSource::Keep(const CacheableFile& file, Scratch& scratch, GeometryScratch& geometry) const {
  if (head_->Has(file.version)) return true;  // another feed was faster
  const Result<ImageSize> opened = scratch.decoder.Open(file.encoded, oriented_);
  return opened.ok() &&
         head_->MakeAhead(file.version, file.sample, file.encoded, *opened, scratch.decoder, geometry);
}

Status ImageSource::Read(const Dataset& dataset, uint64_t id, Scratch& scratch) const {
  scratch.cached.reset();
  scratch.version.reset();
  if (head_ == nullptr) return dataset.ReadBytes(id, field_, scratch.encoded);
  ASSIGN_OR_RETURN(const auto file, dataset.OpenImage(id, field_));
  if (file == nullptr) return dataset.ReadBytes(id, field_, scratch.encoded);
  scratch.version = file->version();
  if (scratch.version) scratch.cached = head_->Find(*scratch.version, id);
  return scratch.cached != nullptr ? OkStatus() : file->ReadAll(kMaxImageFileBytes, scratch.encoded);
}

Result<ImageSize> ImageSource::Open(const TransformChain& transforms, const RandomKey& key, Scratch& scratch,
                                    GeometryPlan& plan, GeometryScratch& geometry) const {
  if (scratch.cached == nullptr) {
    ASSIGN_OR_RETURN(const ImageSize size, scratch.decoder.Open(scratch.encoded, oriented_));
    RETURN_IF_ERROR(transforms.Plan(key, size, plan));
    if (scratch.version) {
      scratch.cached =
          head_->Make(*scratch.version, key.sample, scratch.encoded, size, scratch.decoder, geometry);
    }
    if (scratch.cached == nullptr) return size;
  }
  // Refuses what is refused without the cache: limits are those of all transforms together.
  RETURN_IF_ERROR(transforms.Plan(key, scratch.cached->source(), plan));
  const ImageSize size = scratch.cached->size();
  RETURN_IF_ERROR(transforms.Plan(key, size, plan, head_->transforms()));
  return size;
}

Result<ImageView> ImageSource::Decode(const Box& region, Scratch& scratch) {
  if (scratch.cached != nullptr) return scratch.cached->view().Crop(region);
  return scratch.decoder.Decode(region);
}

}  // namespace pinfeed

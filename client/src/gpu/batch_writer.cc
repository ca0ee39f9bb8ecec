// SPDX-License-Identifier: Apache-2.0
#include "client/src/gpu/batch_writer.h"

#include <algorithm>

namespace pinfeed {
namespace {

const uint8_t* Pixels(const std::byte* bytes) {
  return reinterpret_cast<const uint8_t*>(bytes);
}

}  // namespace

// One launch suffices unless there is a second image, or more copies than one launch takes.
Status BatchWriter::Queue(const std::byte* start, uint32_t samples, const OutputMemory& outputs,
                          CUstream stream) const {
  ConvertImage work{};
  size_t element_bytes = 1;
  const auto launch = [&] {
    RETURN_IF_ERROR(kernel_->Launch(work, element_bytes, stream));
    work.samples = 0;
    work.copy_count = 0;
    return OkStatus();
  };
  for (size_t i = 0; i < offer_.outputs.size(); ++i) {
    const OfferedOutput& output = offer_.outputs[i];
    if (output.is_extents) continue;
    if (output.spec.extents) {
      RETURN_IF_ERROR(GatherRows(start, samples, i, outputs, stream));
    } else if (output.image) {
      if (work.samples != 0) RETURN_IF_ERROR(launch());
      AddImage(start, samples, output, outputs[i], work);
      element_bytes = DTypeSize(output.spec.dtype);
    } else {
      if (work.copy_count == kMaxTensorCopies) RETURN_IF_ERROR(launch());
      const TensorPlace& source = offer_.layout.tensors[output.tensor];
      work.copies[work.copy_count++] = {Pixels(start + offsets_[output.tensor]),
                                        static_cast<uint8_t*>(outputs[i]), source.sample_bytes * samples};
    }
  }
  return launch();
}

Status BatchWriter::GatherRows(const std::byte* start, uint32_t samples, size_t number,
                               const OutputMemory& outputs, CUstream stream) const {
  const OfferedOutput& output = offer_.outputs[number];
  const TensorPlace& source = offer_.layout.tensors[output.tensor];
  pinfeed::GatherRows work{};
  work.source = Pixels(start + offsets_[output.tensor]);
  work.source_extents = reinterpret_cast<const int64_t*>(start + offsets_[*source.spec.extents]);
  work.out = static_cast<uint8_t*>(outputs[number]);
  work.out_extents = static_cast<int64_t*>(outputs[*output.spec.extents]);
  work.row_bytes = source.spec.RowBytes();
  work.source_rows = offer_.layout.batch_size * static_cast<uint64_t>(source.spec.shape[0]);
  work.max_rows = outputs.MaxRows(number, work.source_rows);
  work.samples = samples;
  return kernel_->Launch(work, stream);
}

void BatchWriter::AddImage(const std::byte* start, uint32_t samples, const OfferedOutput& output, void* out,
                           ConvertImage& work) const {
  const OfferedImage& image = *output.image;
  const TensorPlace& source = offer_.layout.tensors[output.tensor];
  work.source = Pixels(start + offsets_[output.tensor]);
  work.mark = image.mark ? Pixels(start + offsets_[*image.mark]) : nullptr;
  work.out = out;
  work.sample_stride = image.plan ? image.PixelBytes() : source.sample_bytes;
  work.samples = samples;
  work.height = image.height;
  work.width = image.width;
  work.channels = image.channels;
  work.source_chw = image.source_layout == ImageLayout::kChw ? 1 : 0;
  work.out_chw = image.output_layout == ImageLayout::kChw ? 1 : 0;
  std::copy(image.table.begin(), image.table.end(), work.table);
}

}  // namespace pinfeed

// SPDX-License-Identifier: Apache-2.0
#include "client/src/link/offer.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "client/include/pinfeed/pinfeed.h"
#include "common/spec/names.h"
#include "common/wire/image_plan.h"

namespace pinfeed {
namespace {

Status Broken(const std::string& what) {
  return Internal("the daemon's offer is unusable: " + what +
                  "; are pinfeedd and libpinfeed of the same version?");
}

Status CheckTensorPlace(const TensorPlace& tensor, const BatchLayout& layout, uint64_t* end) {
  const std::string name = "tensor '" + tensor.spec.name + "'";
  if (tensor.spec.name.empty() || tensor.spec.name.find('\0') != std::string::npos)
    return InvalidArgument("a tensor has no usable name");
  if (tensor.spec.shape.size() >= PF_MAX_DIMS)
    return InvalidArgument(name + " has " + std::to_string(tensor.spec.shape.size()) + " dimensions");
  const Result<uint64_t> sample_bytes = tensor.spec.SampleBytes();
  RETURN_IF_ERROR(sample_bytes.status());
  if (*sample_bytes != tensor.sample_bytes) {
    return InvalidArgument(name + " has samples of " + std::to_string(tensor.sample_bytes) +
                           " bytes where its shape has " + std::to_string(*sample_bytes));
  }
  if (tensor.offset % kTensorAlignment != 0)
    return InvalidArgument(name + " starts at the unaligned offset " + std::to_string(tensor.offset));
  uint64_t bytes = 0;
  if (!CheckedMul(tensor.sample_bytes, layout.batch_size, &bytes) || !CheckedAdd(tensor.offset, bytes, end) ||
      *end > layout.slot_stride) {
    return InvalidArgument(name + " ends after its slot of " + std::to_string(layout.slot_stride) + " bytes");
  }
  return OkStatus();
}

// Checks that packed and padded tensors refer to extents and lengths.
Status CheckReferences(const BatchLayout& layout) {
  std::set<uint32_t> used;
  const auto check = [&](const std::string& name, uint32_t index, const std::vector<int64_t>& shape) {
    if (index >= layout.tensors.size() || layout.tensors[index].spec.dtype != DType::kInt64 ||
        layout.tensors[index].spec.shape != shape || !used.insert(index).second)
      return Broken("tensor '" + name + "' has no usable tensor of its samples' rows");
    return OkStatus();
  };
  for (const TensorPlace& tensor : layout.tensors) {
    const TensorSpec& spec = tensor.spec;
    if ((spec.extents || spec.lengths) && spec.shape.empty())
      return Broken("tensor '" + spec.name + "' is of rows, but has no dimension");
    if (spec.extents) RETURN_IF_ERROR(check(spec.name, *spec.extents, {2}));
    if (spec.lengths) RETURN_IF_ERROR(check(spec.name, *spec.lengths, {}));
  }
  return OkStatus();
}

// Sets a packed or padded output's references, which are the tensors' in the layout.
Status FollowReferences(FeedOffer& offer, OfferedOutput& output) {
  const TensorSpec& tensor = offer.source().tensors[output.tensor].spec;
  const auto find = [&](uint32_t index, std::optional<uint32_t>& reference) {
    for (uint32_t i = 0; i < offer.outputs.size(); ++i) {
      if (offer.outputs[i].tensor != index || offer.outputs[i].image) continue;
      reference = i;
      return OkStatus();
    }
    return Broken("output '" + output.spec.name + "' lacks the output of its samples' rows");
  };
  if (tensor.lengths) RETURN_IF_ERROR(find(*tensor.lengths, output.spec.lengths));
  if (!tensor.extents) return OkStatus();
  RETURN_IF_ERROR(find(*tensor.extents, output.spec.extents));
  offer.outputs[*output.spec.extents].is_extents = true;
  return OkStatus();
}

// Of an image that is decoded.
Status CheckPlan(const std::string& name, const OfferedImage& image, const TensorPlace& source,
                 const BatchLayout& layout) {
  const bool packed = source.spec.extents && source.spec.shape.size() == 1;
  if (!packed || source.spec.dtype != DType::kUint8 || source.sample_bytes < image.PixelBytes() ||
      image.source_layout != ImageLayout::kHwc)
    return Broken(name + " refers to a tensor that does not hold encoded images");
  if (*image.plan >= layout.tensors.size()) return Broken(name + " has no usable plans");
  const TensorPlace& plan = layout.tensors[*image.plan];
  if (plan.spec.dtype != DType::kUint8 || plan.spec.packed() || plan.sample_bytes != sizeof(ImagePlan))
    return Broken(name + " has no usable plans");
  if (!image.mark) return Broken(name + " has no marks");
  return OkStatus();
}

// So that all coordinates fit into the kernel's 32 bits.
Status CheckView(const std::string& name, const SampleView& view) {
  constexpr uint32_t kMost = 1U << 28;
  constexpr auto kFarthest = static_cast<int32_t>(kMost);
  const bool sized = view.source_height < kMost && view.source_width < kMost && view.height < kMost &&
                     view.width < kMost && view.positions_x < kMost && view.positions_y < kMost &&
                     view.positions_x > 0 && view.positions_y > 0;
  const bool near = view.crop_x > -kFarthest && view.crop_x < kFarthest && view.crop_y > -kFarthest &&
                    view.crop_y < kFarthest;
  uint32_t crops = 0;
  bool known =
      view.border <= static_cast<uint32_t>(BorderMode::kSymmetric) && view.step_count <= kMaxViewSteps;
  for (uint32_t i = 0; known && i < view.step_count; ++i) {
    known = view.steps[i].kind >= ViewStep::kFlip && view.steps[i].kind <= ViewStep::kCrop;
    crops += view.steps[i].kind == ViewStep::kCrop ? 1 : 0;
  }
  const bool whole = view.height == view.source_height && view.width == view.source_width;
  if (!sized || !near || !known || crops > 1 || (crops == 0 && !whole))
    return Broken(name + " shows an impossible part of its image");
  return OkStatus();
}

Status CheckImage(const OfferedOutput& output, const BatchLayout& layout) {
  const OfferedImage& image = *output.image;
  const std::string name = "output '" + output.spec.name + "'";
  const TensorPlace& source = layout.tensors[output.tensor];
  uint64_t pixels = 0;
  uint64_t elements = 0;
  if (image.view) RETURN_IF_ERROR(CheckView(name, *image.view));
  if (image.view && (image.view->height != image.height || image.view->width != image.width))
    return Broken(name + " has another size than its view");
  const uint64_t height = image.view ? image.view->source_height : image.height;
  const uint64_t width = image.view ? image.view->source_width : image.width;
  if (image.height == 0 || image.width == 0) return Broken(name + " is not an image");
  if ((image.channels != 1 && image.channels != 3) || height == 0 || width == 0 ||
      !CheckedMul(height, width, &pixels) || !CheckedMul(pixels, image.channels, &elements))
    return Broken(name + " is not an image");
  if (image.plan) {
    RETURN_IF_ERROR(CheckPlan(name, image, source, layout));
  } else if (source.spec.dtype != DType::kUint8 || source.sample_bytes != elements)
    return Broken(name + " refers to a tensor that does not hold its pixels");
  const size_t element = DTypeSize(output.spec.dtype);
  const std::vector<int64_t> shape = image.output_layout == ImageLayout::kChw
                                         ? std::vector<int64_t>{image.channels, image.height, image.width}
                                         : std::vector<int64_t>{image.height, image.width, image.channels};
  if ((element != 1 && element != 2 && element != 4) || output.spec.shape != shape)
    return Broken(name + " has another size than its pixels give");
  if (image.table.size() != 256 * image.channels)
    return Broken(name + " has a table of " + std::to_string(image.table.size()) + " entries");
  if (image.mark &&
      (*image.mark >= layout.tensors.size() || layout.tensors[*image.mark].spec.dtype != DType::kUint8 ||
       !layout.tensors[*image.mark].spec.shape.empty()))
    return Broken(name + " has no usable marks");
  return OkStatus();
}

// Of an offer whose images are decoded here; its outputs' tensors exist.
Status CheckDecoded(const FeedOffer& offer) {
  const OfferedOutput* const decoded = offer.Decoded();
  if (decoded == nullptr || offer.backend != Backend::kHost)
    return Broken("images are to be decoded here, and there is none, or it is not in host memory");
  RETURN_IF_ERROR(CheckImage(*decoded, offer.layout));
  const std::vector<TensorPlace>& tensors = offer.layout.tensors;
  for (const OfferedOutput& output : offer.outputs) {
    const std::string name = "output '" + output.spec.name + "'";
    if (&output == decoded) continue;
    if (output.image && output.image->plan) return Broken(name + " is another image to be decoded");
    if (output.tensor == decoded->tensor || output.tensor == decoded->image->plan ||
        output.tensor == tensors[decoded->tensor].spec.extents)
      return Broken(name + " is made of what only a decoder reads");
  }
  return OkStatus();
}

Status CheckDecode(const FeedOffer& offer) {
  const bool is_auto = offer.decode == Decode::kAuto;
  if (is_auto ? offer.gpu_share == 0 || offer.gpu_share > kWholeShare : offer.gpu_share != 0)
    return Broken("a share of " + std::to_string(offer.gpu_share) + " for the GPU");
  const std::vector<TensorPlace>& tensors = offer.layout.tensors;
  if (offer.sample_id_tensor && (*offer.sample_id_tensor >= tensors.size() ||
                                 tensors[*offer.sample_id_tensor].spec.dtype != DType::kInt64 ||
                                 !tensors[*offer.sample_id_tensor].spec.shape.empty()))
    return Broken("the samples' ids are in no tensor");
  return OkStatus();
}

// Of an offer with resident samples.
Status CheckResident(FeedOffer& offer) {
  BatchLayout& layout = offer.resident->layout;
  uint64_t bytes = 0;
  if (layout.slot_stride % kTensorAlignment != 0 ||
      !CheckedAdd(layout.slot_stride, sizeof offer.resident->id, &bytes) || bytes > offer.resident->bytes)
    return Broken("the id of the resident samples lies outside of their memory");
  if (const Status checked = CheckLayout(layout); !checked.ok()) return Broken(checked.message());
  for (const TensorPlace& tensor : layout.tensors)
    if (tensor.spec.packed()) return Broken("the resident tensor '" + tensor.spec.name + "' is packed");
  RETURN_IF_ERROR(CheckReferences(layout));
  const std::vector<TensorPlace>& slot = offer.layout.tensors;
  if (offer.backend != Backend::kHost || offer.decode != Decode::kCpu || slot.size() != 1 ||
      slot.front().spec.dtype != DType::kUint32 || !slot.front().spec.shape.empty())
    return Broken("batches of resident samples are not lists of them in host memory");
  return OkStatus();
}

Status CheckOutputs(FeedOffer& offer) {
  if (offer.resident) RETURN_IF_ERROR(CheckResident(offer));
  const std::vector<TensorPlace>& tensors = offer.source().tensors;
  const bool decodes = offer.decode != Decode::kCpu;
  if (offer.backend == Backend::kHost && !decodes && !offer.resident) {
    offer.outputs.clear();
    for (uint32_t i = 0; i < tensors.size(); ++i) offer.outputs.push_back({tensors[i].spec, i, {}});
  }
  if (offer.outputs.empty()) return Broken("no outputs");
  std::set<std::string_view> names;
  for (const OfferedOutput& output : offer.outputs) {
    const std::string name = "output '" + output.spec.name + "'";
    if (output.spec.name.empty() || output.spec.name.find('\0') != std::string::npos)
      return Broken("an output has no usable name");
    if (!names.insert(output.spec.name).second)
      return Broken("two outputs are named '" + output.spec.name + "'");
    if (output.tensor >= tensors.size()) return Broken(name + " refers to no tensor");
    if (output.spec.shape.size() >= PF_MAX_DIMS)
      return Broken(name + " has " + std::to_string(output.spec.shape.size()) + " dimensions");
  }
  if (decodes) RETURN_IF_ERROR(CheckDecoded(offer));
  for (OfferedOutput& output : offer.outputs) {
    const std::string name = "output '" + output.spec.name + "'";
    const TensorSpec& tensor = tensors[output.tensor].spec;
    if (output.image && output.image->plan) {
      if (!decodes) return Broken(name + " is an image to be decoded, and nothing is to be");
      continue;
    }
    if (tensor.extents) {
      if (output.image || output.spec.shape.size() != tensor.shape.size())
        return Broken(name + " is not made of its packed tensor");
      output.spec.shape[0] = tensor.shape[0];
    }
    RETURN_IF_ERROR(FollowReferences(offer, output));
    if (output.image) {
      if (output.image->view.has_value() != offer.resident.has_value())
        return Broken(name + " and the samples are not both resident");
      if (offer.resident && output.image->mark) return Broken(name + " has marks that nothing reads");
      RETURN_IF_ERROR(CheckImage(output, offer.source()));
    } else if (output.spec.dtype != tensor.dtype || output.spec.shape != tensor.shape) {
      return Broken(name + " is not of the type and shape of the tensor it is made of");
    }
  }
  return OkStatus();
}

}  // namespace

const OfferedOutput* FeedOffer::Decoded() const {
  const auto found =
      std::ranges::find_if(outputs, [](const OfferedOutput& o) { return o.image && o.image->plan; });
  return found == outputs.end() ? nullptr : &*found;
}

Status CheckLayout(BatchLayout& layout) {
  if (layout.batch_size == 0) return InvalidArgument("batch_size is 0");
  if (layout.tensors.empty()) return InvalidArgument("no tensors");
  std::set<std::string_view> names;
  layout.slot_bytes = 0;
  for (const TensorPlace& tensor : layout.tensors) {
    uint64_t end = 0;
    RETURN_IF_ERROR(CheckTensorPlace(tensor, layout, &end));
    layout.slot_bytes = std::max(layout.slot_bytes, end);
    if (!names.insert(tensor.spec.name).second)
      return InvalidArgument("two tensors are named '" + tensor.spec.name + "'");
  }
  return OkStatus();
}

Status CheckOffer(FeedOffer& offer) {
  BatchLayout& layout = offer.layout;
  if (offer.backend == Backend::kAuto) return Broken("its backend is unknown to this library");
  if (offer.backend == Backend::kCudaIpc && offer.read_only)
    return Broken("memory passed by handle cannot be mapped read-only");
  if (offer.slot_count == 0 || offer.slot_count > kMaxSlots) {
    return Broken(std::to_string(offer.slot_count) + " slots, where 1 to " + std::to_string(kMaxSlots) +
                  " are possible");
  }
  uint64_t arena = 0;
  if (layout.slot_stride == 0 || layout.slot_stride % kTensorAlignment != 0 ||
      !CheckedMul(layout.slot_stride, offer.slot_count, &arena) ||
      (offer.backend != Backend::kHost && !CheckedAdd(arena, sizeof(offer.arena_id), &arena)) ||
      arena > offer.arena_bytes) {
    return Broken(std::to_string(offer.slot_count) + " slots of " + std::to_string(layout.slot_stride) +
                  " bytes in an arena of " + std::to_string(offer.arena_bytes));
  }
  if (const Status checked = CheckLayout(layout); !checked.ok()) return Broken(checked.message());
  RETURN_IF_ERROR(CheckReferences(layout));
  RETURN_IF_ERROR(CheckDecode(offer));
  if (offer.lifeline_path.empty() || offer.lifeline_path.front() != '/') {
    return Broken("the lifeline's path '" + offer.lifeline_path + "' is not absolute");
  }
  return CheckOutputs(offer);
}

bool OfferedImage::operator==(const OfferedImage& other) const {
  return std::tie(height, width, channels, source_layout, output_layout, mark, table, plan) ==
         std::tie(other.height, other.width, other.channels, other.source_layout, other.output_layout,
                  other.mark, other.table, other.plan);
}

Status CheckSameFeed(const FeedOffer& before, const FeedOffer& now) {
  if (before.fingerprint != now.fingerprint) {
    return FailedPrecondition("the dataset changed while the daemon was away (fingerprint " +
                              before.fingerprint + ", now " + now.fingerprint +
                              "), so the position in it is no longer valid; open a new feed");
  }
  if (before.backend != now.backend) {
    return FailedPrecondition(std::string("the daemon came back with memory of the backend ") +
                              BackendName(now.backend) + ", this feed was opened on " +
                              BackendName(before.backend) + "; open a new feed");
  }
  if (before.decode != now.decode || before.gpu_share != now.gpu_share) {
    return FailedPrecondition("the daemon came back with images decoded in another way (" +
                              DecodeText(now.decode, now.gpu_share) + ", before " +
                              DecodeText(before.decode, before.gpu_share) + "); open a new feed");
  }
  if (before.resident.has_value() != now.resident.has_value()) {
    return FailedPrecondition(std::string("the daemon came back with samples that are ") +
                              (now.resident ? "" : "not ") + "resident, other than before; open a new feed");
  }
  if (before.source().tensors != now.source().tensors || before.layout.tensors != now.layout.tensors ||
      before.layout.batch_size != now.layout.batch_size || before.outputs != now.outputs) {
    return FailedPrecondition(
        "the daemon came back with other tensors than this feed was opened with (was it upgraded?); open a "
        "new feed");
  }
  return OkStatus();
}

}  // namespace pinfeed

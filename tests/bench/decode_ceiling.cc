// SPDX-License-Identifier: Apache-2.0
// The ceiling of image loading. In: the JPEG files named on stdin, one a line, read before the clock starts.
// Out: how many of them `threads` threads decode whole with libjpeg-turbo and resize a random crop of to 224
// x 224, in a second. Nothing is stored. With `decoded` they are decoded before the clock starts, too.
//
//   find images -name '*.jpg' | decode_ceiling SECONDS THREADS [decoded]
#include <cstdio>
// After cstdio, whose FILE it needs:
#include <jpeglib.h>

#include <atomic>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "server/image/image.h"
#include "server/transform/transform_chain.h"
#include "tests/bench/count_for.h"
#include "tests/support/transform_specs.h"

namespace pinfeed {
namespace {

constexpr uint32_t kSide = 224;

// Bare libjpeg with its defaults, which end the process when a file is damaged: accurate integer IDCT, fancy
// upsampling.
Result<ImageView> DecodeWhole(const std::vector<char>& file, ImageBuffer& pixels) {
  jpeg_decompress_struct info{};
  jpeg_error_mgr error{};
  info.err = jpeg_std_error(&error);
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(file.data()), file.size());
  jpeg_read_header(&info, TRUE);
  info.out_color_space = JCS_RGB;
  jpeg_start_decompress(&info);
  const auto width = static_cast<int32_t>(info.output_width);
  const auto height = static_cast<int32_t>(info.output_height);
  const size_t stride = 3 * static_cast<size_t>(width);
  ASSIGN_OR_RETURN(uint8_t* const data, pixels.Reserve(width, height));
  while (info.output_scanline < info.output_height) {
    uint8_t* row = data + info.output_scanline * stride;
    jpeg_read_scanlines(&info, &row, 1);
  }
  jpeg_finish_decompress(&info);
  jpeg_destroy_decompress(&info);
  return ImageView{data, width, height, stride};
}

struct Inputs {
  std::vector<std::vector<char>> files;
  std::vector<ImageBuffer> memory;  // of the decoded images
  std::vector<ImageView> decoded;   // empty: each is decoded when it is its turn
};

Status Work(const Inputs& inputs, std::atomic<uint64_t>& next, std::atomic<uint64_t>& done,
            const std::atomic<bool>& stop) {
  const TransformChain transforms = ChainOf({RandomResizedCrop{.height = kSide, .width = kSide}});
  ImageBuffer pixels;
  GeometryScratch scratch;
  while (!stop.load(std::memory_order_relaxed)) {
    const uint64_t number = next.fetch_add(1, std::memory_order_relaxed);
    const size_t which = number % inputs.files.size();
    ImageView image;
    if (inputs.decoded.empty()) {
      ASSIGN_OR_RETURN(image, DecodeWhole(inputs.files[which], pixels));
    } else {
      image = inputs.decoded[which];
    }
    const ImageSize size{image.width, image.height};
    GeometryPlan plan;
    RETURN_IF_ERROR(transforms.Plan({.seed = 0, .epoch = 0, .sample = number}, size, plan));
    ASSIGN_OR_RETURN([[maybe_unused]] const ImageView result,
                     RunGeometry(plan, size, image.Crop(SourceRegion(plan, size)), scratch));
    done.fetch_add(1, std::memory_order_relaxed);
  }
  return OkStatus();
}

Result<std::vector<std::vector<char>>> ReadFiles(std::istream& names) {
  std::vector<std::vector<char>> files;
  for (std::string name; std::getline(names, name);) {
    std::ifstream file(name, std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    if (!file || files.back().empty()) return NotFound("read " + name + ": it is empty or not there");
  }
  if (files.empty()) return InvalidArgument("no file was named on stdin");
  return files;
}

Status Run(double seconds, unsigned thread_count, bool decoded) {
  Inputs inputs;
  ASSIGN_OR_RETURN(inputs.files, ReadFiles(std::cin));
  if (decoded) inputs.memory.resize(inputs.files.size());
  for (size_t i = 0; i < inputs.memory.size(); ++i) {
    ASSIGN_OR_RETURN(const ImageView image, DecodeWhole(inputs.files[i], inputs.memory[i]));
    inputs.decoded.push_back(image);
  }
  std::atomic<uint64_t> next = 0;
  const auto work = [&](unsigned /*thread*/, std::atomic<uint64_t>& done, const std::atomic<bool>& stop) {
    return Work(inputs, next, done, stop);
  };
  return CountFor(seconds, thread_count, work);
}

}  // namespace
}  // namespace pinfeed

int main(int argc, char** argv) {
  const bool decoded = argc == 4 && std::string(argv[3]) == "decoded";
  if (argc != 3 && !decoded) {
    std::fputs("usage: decode_ceiling SECONDS THREADS [decoded] < file-names\n", stderr);
    return 2;
  }
  const pinfeed::Status status =
      pinfeed::Run(std::stod(argv[1]), static_cast<unsigned>(std::stoul(argv[2])), decoded);
  if (status.ok()) return 0;
  std::fprintf(stderr, "decode_ceiling: %s\n", status.ToString().c_str());
  return 1;
}

// SPDX-License-Identifier: Apache-2.0
// The format "tokens": a stream of token ids. In: a little-endian file, without a header or with llm.c's, or
// a 1-D .npy file of any name, of uint16 or uint32. Out: the fields "x" and "y", int64 [sequence_length]; y
// is one token ahead of x.

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/base/quote.h"
#include "server/dataset/fingerprint.h"
#include "server/dataset/formats/headerless_tokens.h"
#include "server/dataset/formats/npy_header.h"
#include "server/dataset/formats/registry.h"

namespace pinfeed {
namespace {

constexpr size_t kFields = 2;  // x, y
// The number of tokens per read: 16 or 32 KiB, which stay in the first-level cache until they are widened.
constexpr size_t kBlockTokens = 8192;

// Widens token ids to int64. Any alignment.
template <typename Token>
void WidenPortable(const std::byte* in, size_t count, std::byte* out) {
  for (size_t i = 0; i < count; ++i) {
    Token token;
    std::memcpy(&token, in + i * sizeof(token), sizeof(token));
    const auto id = static_cast<int64_t>(token);
    std::memcpy(out + i * sizeof(id), &id, sizeof(id));
  }
}

#if defined(__x86_64__)
// Widens four at a time, since widening is the largest cost of a token sample. Unrolled: a loop of one vector
// is a third slower where it happens to lie across two cache lines.
template <typename Token>
__attribute__((target("avx2"))) void WidenAvx2(const std::byte* in, size_t count, std::byte* out) {
  size_t i = 0;
#pragma GCC unroll 8
  for (; i + 4 <= count; i += 4) {
    const auto* from = reinterpret_cast<const __m128i*>(in + i * sizeof(Token));
    const __m256i ids = sizeof(Token) == 2 ? _mm256_cvtepu16_epi64(_mm_loadl_epi64(from))
                                           : _mm256_cvtepu32_epi64(_mm_loadu_si128(from));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i * sizeof(int64_t)), ids);
  }
  WidenPortable<Token>(in + i * sizeof(Token), count - i, out + i * sizeof(int64_t));
}
#endif

template <typename Token>
void Widen(const std::byte* in, size_t count, std::byte* out) {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) return WidenAvx2<Token>(in, count, out);
#endif
  WidenPortable<Token>(in, count, out);
}

// The position of the tokens in the file.
struct Stream {
  DType dtype = DType::kUint16;
  uint64_t offset = 0;
  uint64_t tokens = 0;
};

// Purpose: the Dataset of a token stream. Owns: the file's descriptor. Threads and errors: as Dataset.
// Invariant: all info().samples samples end within the stream, so no position overflows.
class Tokens final : public Dataset {
 public:
  Tokens(std::unique_ptr<const RandomAccessFile> file, const Stream& stream, uint64_t length, uint64_t stride,
         DatasetInfo info)
      : file_(std::move(file)), stream_(stream), length_(length), stride_(stride), info_(std::move(info)) {}

  const DatasetInfo& info() const override { return info_; }

  Status ReadTensor(uint64_t id, size_t field, std::span<std::byte> out) const override {
    PF_CHECK(field < kFields, "field out of range");
    return ReadSample(id, field == 0 ? out : std::span<std::byte>(),
                      field == 1 ? out : std::span<std::byte>());
  }

  Status ReadTensors(uint64_t id, std::span<const std::span<std::byte>> buffers) const override {
    PF_CHECK(buffers.size() == kFields, "tokens needs a buffer for each field");
    return ReadSample(id, buffers[0], buffers[1]);
  }

  // x and y are the same tokens but for one.
  Prefetched Prefetch(uint64_t id, uint64_t count, size_t field) const override {
    if (field != 0) return {};
    const uint64_t joined = stride_ > 2 * length_ ? 1 : count;  // with what lies between them
    const uint64_t token_bytes = DTypeSize(stream_.dtype);
    const uint64_t bytes = ((joined - 1) * stride_ + length_ + 1) * token_bytes;
    Prefetched sum;
    for (uint64_t i = 0; i < count; i += joined)
      sum.Add(file_->Prefetch(stream_.offset + (id + i) * stride_ * token_bytes, bytes));
    return sum;
  }

  std::string Describe(uint64_t id) const override {
    const uint64_t begin = id * stride_;
    return EscapeName(file_->path()) + "[" + std::to_string(id) + "] (tokens " + std::to_string(begin) +
           " to " + std::to_string(begin + length_) + ")";
  }

 private:
  // Either buffer may be empty.
  Status ReadSample(uint64_t id, std::span<std::byte> x, std::span<std::byte> y) const {
    PF_CHECK(id < info_.samples, "sample id out of range");
    for (const auto& buffer : {x, y}) {
      PF_CHECK(buffer.empty() || buffer.size() == length_ * sizeof(int64_t),
               "the output buffer has the wrong size");
    }
    return stream_.dtype == DType::kUint16 ? Read<uint16_t>(id * stride_, x, y)
                                           : Read<uint32_t>(id * stride_, x, y);
  }

  template <typename Token>
  Status Read(uint64_t first, std::span<std::byte> x, std::span<std::byte> y) const {
    std::array<std::byte, (kBlockTokens + 1) * sizeof(Token)> block;  // y is one token ahead of x
    for (uint64_t done = 0; done < length_; done += kBlockTokens) {
      const size_t count = std::min<uint64_t>(kBlockTokens, length_ - done);
      const std::span<std::byte> part(block.data(), (count + 1) * sizeof(Token));
      RETURN_IF_ERROR(file_->ReadAt(stream_.offset + (first + done) * sizeof(Token), part));
      if (!x.empty()) Widen<Token>(part.data(), count, x.data() + done * sizeof(int64_t));
      if (!y.empty()) Widen<Token>(part.data() + sizeof(Token), count, y.data() + done * sizeof(int64_t));
    }
    return OkStatus();
  }

  const std::unique_ptr<const RandomAccessFile> file_;
  const Stream stream_;
  const uint64_t length_;
  const uint64_t stride_;
  const DatasetInfo info_;
};

// `written`: what the file's header says.
Status CheckRequested(const RandomAccessFile& file, std::optional<DType> requested, DType written) {
  if (!requested || *requested == written) return OkStatus();
  return InvalidArgument("open " + QuotePath(file.path()) + ": token_dtype says " +
                         std::string(DTypeName(*requested)) + ", but its header says " +
                         std::string(DTypeName(written)) + "; leave token_dtype out");
}

Result<Stream> NpyStream(const RandomAccessFile& file, std::optional<DType> requested) {
  ASSIGN_OR_RETURN(const NpyHeader header, ReadNpyHeader(file));
  const bool is_token = header.dtype == DType::kUint16 || header.dtype == DType::kUint32;
  if (header.shape.size() != 1 || !is_token || header.big_endian) {
    return InvalidArgument("open " + QuotePath(file.path()) + ": it holds a " +
                           std::to_string(header.shape.size()) + "-D array of " +
                           (header.big_endian ? "big-endian " : "") + std::string(DTypeName(header.dtype)) +
                           "; tokens need a 1-D array of little-endian uint16 or uint32");
  }
  RETURN_IF_ERROR(CheckRequested(file, requested, header.dtype));
  return Stream{header.dtype, header.data_offset, static_cast<uint64_t>(header.shape[0])};
}

// Files of llm.c and modded-nanogpt begin with 256 numbers of 4 bytes: what they are, a version, how many
// tokens follow, and zeros. Nothing if the file begins otherwise.
Result<std::optional<Stream>> LlmcStream(const RandomAccessFile& file, std::optional<DType> requested) {
  std::array<uint32_t, 256> header = {};
  const size_t present = std::min<uint64_t>(file.size(), sizeof header);
  RETURN_IF_ERROR(file.ReadAt(0, std::as_writable_bytes(std::span(header)).first(present)));
  const uint32_t kind = header[0];
  const uint32_t version = header[1];
  const uint32_t tokens = header[2];
  constexpr uint32_t kGpt2 = 20240520;
  constexpr uint32_t kLlama3 = 20240801;
  constexpr uint32_t kEvaluation = 20240522;
  if (kind != kGpt2 && kind != kLlama3 && kind != kEvaluation) return std::nullopt;
  if (present < sizeof header) {
    return DataLoss("open " + QuotePath(file.path()) + ": it begins as a file of llm.c, but its " +
                    std::to_string(present) +
                    " bytes are less than a header; it was truncated, so fetch it again");
  }
  const bool is_gpt2 = kind == kGpt2 && version == 1;
  const bool is_llama3 = kind == kLlama3 && version == 7;
  if ((!is_gpt2 && !is_llama3) || std::ranges::any_of(std::span(header).subspan(3), std::identity())) {
    return InvalidArgument(
        "open " + QuotePath(file.path()) + ": it begins as a file of llm.c (" + std::to_string(kind) +
        ", version " + std::to_string(version) +
        "), but is no stream of tokens that is known here, such as an evaluation file; read "
        "it in a Dataset of yours with pinfeed.DataLoader, or, if these are tokens, save them "
        "with numpy.save");
  }
  const DType dtype = is_gpt2 ? DType::kUint16 : DType::kUint32;
  RETURN_IF_ERROR(CheckRequested(file, requested, dtype));
  if (file.size() - sizeof header != uint64_t{tokens} * DTypeSize(dtype)) {
    return DataLoss(
        "open " + QuotePath(file.path()) + ": by its header of llm.c, " + std::to_string(tokens) +
        " tokens of " + std::string(DTypeName(dtype)) + " follow, but " +
        std::to_string(file.size() - sizeof header) +
        " bytes do; was it truncated, or several joined? If joined, leave out their headers: tail -q -c +" +
        std::to_string(sizeof header + 1) + " DIR/*.bin > FILE");
  }
  return Stream{dtype, sizeof header, tokens};
}

Result<Stream> HeaderlessStream(const RandomAccessFile& file, DType dtype) {
  if (file.size() % DTypeSize(dtype) != 0) {
    return DataLoss("open " + QuotePath(file.path()) + ": its " + std::to_string(file.size()) +
                    " bytes are not a whole number of " + std::string(DTypeName(dtype)) +
                    " tokens; token_dtype is wrong, or the file was truncated");
  }
  return Stream{dtype, 0, file.size() / DTypeSize(dtype)};
}

constexpr std::string_view kNpyExtension = ".npy";
constexpr std::string_view kBinExtension = ".bin";

// A directory is refused, since reading one of several files would silently ignore the others.
Status TokensInDirectory(const DatasetContents& contents) {
  const bool arrays = contents.bin_file.empty() && !contents.npy_file.empty();
  const std::string path = QuotePath(contents.path);
  const std::string joined = QuotePath(contents.path + std::string(arrays ? kNpyExtension : kBinExtension));
  const std::string how = arrays ? "numpy.save(" + joined +
                                       ", numpy.concatenate([numpy.load(f) for f in sorted(glob.glob(" +
                                       QuotePath(contents.path + "/*.npy") + "))])) in Python"
                                 : "cat " + path + "/*.bin > " + joined +
                                       ", or tail -q -c +1025 in place of cat if they have llm.c's header";
  return InvalidArgument(
      "tokens dataset " + path +
      " is a directory, but a token stream is one file: name the file, or join several files in "
      "order (" +
      how + ") and open that");
}

struct TokenOptions {
  uint64_t sequence_length = 0;               // >= 1
  uint64_t stride = 0;                        // 0: sequence_length
  std::optional<DType> dtype = std::nullopt;  // of a headerless file; unset: kUint16. Or kUint32
};

// Sample i starts at token i * stride and spans sequence_length + 1 tokens, so the number of samples is
// floor((tokens - (sequence_length + 1)) / stride) + 1. The headers of a .npy file
// and of llm.c state the element type. A file that starts with one has it, whatever its name.
Result<std::shared_ptr<const Dataset>> OpenTokens(const Location& base, DatasetInfo info,
                                                  const TokenOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<const RandomAccessFile> file, base.OpenFile(""));
  bool is_npy = base.path().ends_with(kNpyExtension);
  if (!is_npy) {
    ASSIGN_OR_RETURN(is_npy, StartsAsNpy(*file));
  }
  std::optional<Stream> found;
  if (is_npy) {
    ASSIGN_OR_RETURN(found, NpyStream(*file, options.dtype));
  } else {
    ASSIGN_OR_RETURN(found, LlmcStream(*file, options.dtype));
  }
  if (!found) {
    RETURN_IF_ERROR(CheckHeaderlessTokens(*file, options.dtype));
    ASSIGN_OR_RETURN(found, HeaderlessStream(*file, options.dtype.value_or(DType::kUint16)));
  }
  const Stream stream = *found;
  const uint64_t length = options.sequence_length;
  const uint64_t stride = options.stride == 0 ? length : options.stride;
  if (stream.tokens < length + 1) {
    return InvalidArgument("open " + QuotePath(file->path()) + ": it holds " + std::to_string(stream.tokens) +
                           " tokens, but one sample of sequence_length " + std::to_string(length) +
                           " needs " + std::to_string(length + 1));
  }
  info.samples = (stream.tokens - (length + 1)) / stride + 1;
  const std::vector<int64_t> shape = {static_cast<int64_t>(length)};
  info.fields = {{{"x", DType::kInt64, shape}, FieldKind::kTensor},
                 {{"y", DType::kInt64, shape}, FieldKind::kTensor}};
  Fingerprint fingerprint;
  fingerprint.Add("tokens")
      .Add(static_cast<uint64_t>(stream.dtype))
      .Add(stream.tokens)
      .Add(length)
      .Add(stride)
      .Add(info.samples);
  info.fingerprint = fingerprint.Hex();
  return std::make_shared<const Tokens>(std::move(file), stream, length, stride, std::move(info));
}

class TokensDatasetFormat final : public DatasetFormat {
 public:
  std::string_view name() const override { return "tokens"; }
  std::span<const std::string_view> options() const override {
    static constexpr std::string_view kOptions[] = {"sequence_length", "stride", "token_dtype"};
    return kOptions;
  }
  void CheckOptions(ParameterReader& options, bool complete) const override {
    const double length = options.Number("sequence_length", 0);
    if (complete && length < 1) options.Fault("sequence_length", "must be at least 1 with the format tokens");
    options.Number("stride", 0);
    const std::string dtype = options.Word("token_dtype", "");
    if (!dtype.empty() && dtype != "uint16" && dtype != "uint32")
      options.Fault("token_dtype", "is neither uint16 nor uint32");
  }
  std::optional<std::string> Recognise(const DatasetContents& contents,
                                       const ParameterMap& options) const override {
    if (!options.contains("sequence_length")) return std::nullopt;
    if (!contents.is_directory) {
      if (!contents.path.ends_with(kNpyExtension) && !contents.path.ends_with(kBinExtension))
        return std::nullopt;
      return "tokens";
    }
    // Open refuses a directory, with advice.
    if (contents.npy_file.empty() && contents.bin_file.empty()) return std::nullopt;
    return "files of tokens (such as " +
           QuotePath(contents.bin_file.empty() ? contents.npy_file : contents.bin_file) + ")";
  }
  Result<std::shared_ptr<const Dataset>> Open(std::shared_ptr<const Location> location,
                                              const DatasetContents& contents, DatasetInfo info,
                                              ParameterReader& options,
                                              IndexStore* /*store*/) const override {
    if (contents.is_directory) return TokensInDirectory(contents);
    TokenOptions tokens{.sequence_length = static_cast<uint64_t>(options.Number("sequence_length", 0)),
                        .stride = static_cast<uint64_t>(options.Number("stride", 0))};
    if (const Result<DType> dtype = DTypeFromName(options.Word("token_dtype", "")); dtype.ok())
      tokens.dtype = *dtype;
    return OpenTokens(*location, std::move(info), tokens);
  }
};

}  // namespace

const DatasetFormat& TokensFormat() {
  static const TokensDatasetFormat format;
  return format;
}

}  // namespace pinfeed

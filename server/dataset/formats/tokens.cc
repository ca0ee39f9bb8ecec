// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/formats/tokens.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cstring>

#include "common/base/quote.h"
#include "server/dataset/fingerprint.h"
#include "server/dataset/formats/npy_header.h"
#include "server/dataset/formats/registry.h"

namespace pinfeed {
namespace {

constexpr size_t kFields = 2;  // x, y
// Read at once: 16 KiB or 32 KiB, which stay in the first-level cache until they are widened.
constexpr size_t kBlockTokens = 8192;

// int64 ids from narrower ones, any alignment.
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
// The same, four at a time: widening is most of what a token sample costs.
template <typename Token>
__attribute__((target("avx2"))) void WidenAvx2(const std::byte* in, size_t count, std::byte* out) {
  size_t i = 0;
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

// Where the tokens lie in the file.
struct Stream {
  DType dtype = DType::kUint16;
  uint64_t offset = 0;
  uint64_t tokens = 0;
};

// Purpose: the Dataset of a token stream. Owns: the file's descriptor. Threads and errors: as Dataset says.
// Invariant: info().samples is such that every sample ends within the stream, so no position overflows.
class Tokens final : public Dataset {
 public:
  Tokens(std::unique_ptr<const RandomAccessFile> file, const Stream& stream, uint64_t length, uint64_t stride,
         DatasetInfo info)
      : file_(std::move(file)), stream_(stream), length_(length), stride_(stride), info_(std::move(info)) {}

  const DatasetInfo& info() const override { return info_; }

  Status ReadTensor(uint64_t id, size_t field, std::span<std::byte> out) const override {
    PF_CHECK(field < kFields, "field behind the last one");
    return ReadSample(id, field == 0 ? out : std::span<std::byte>(),
                      field == 1 ? out : std::span<std::byte>());
  }

  Status ReadTensors(uint64_t id, std::span<const std::span<std::byte>> places) const override {
    PF_CHECK(places.size() == kFields, "a place for each field");
    return ReadSample(id, places[0], places[1]);
  }

  Status ReadBytes(uint64_t /*id*/, size_t /*field*/, std::vector<std::byte>& /*out*/) const override {
    PF_CHECK(false, "tokens has no encoded field");
    return OkStatus();
  }

  std::string Describe(uint64_t id) const override {
    const uint64_t begin = id * stride_;
    return EscapeName(file_->path()) + "[" + std::to_string(id) + "] (tokens " + std::to_string(begin) +
           " to " + std::to_string(begin + length_) + ")";
  }

 private:
  // Either place may be empty.
  Status ReadSample(uint64_t id, std::span<std::byte> x, std::span<std::byte> y) const {
    PF_CHECK(id < info_.samples, "sample behind the end of the dataset");
    for (const auto& place : {x, y}) {
      PF_CHECK(place.empty() || place.size() == length_ * sizeof(int64_t),
               "the place has another size than the sample");
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

Result<Stream> NpyStream(const RandomAccessFile& file, std::optional<DType> said) {
  ASSIGN_OR_RETURN(const NpyHeader header, ReadNpyHeader(file));
  const bool is_token = header.dtype == DType::kUint16 || header.dtype == DType::kUint32;
  if (header.shape.size() != 1 || !is_token || header.big_endian) {
    return InvalidArgument("open " + QuotePath(file.path()) + ": it holds a " +
                           std::to_string(header.shape.size()) + "-D array of " +
                           (header.big_endian ? "big-endian " : "") + std::string(DTypeName(header.dtype)) +
                           "; tokens need a 1-D array of little-endian uint16 or uint32");
  }
  if (said && *said != header.dtype) {
    return InvalidArgument("open " + QuotePath(file.path()) + ": token_dtype says " +
                           std::string(DTypeName(*said)) + ", but its header says " +
                           std::string(DTypeName(header.dtype)) + "; leave token_dtype out");
  }
  return Stream{header.dtype, header.data_offset, static_cast<uint64_t>(header.shape[0])};
}

Result<Stream> FlatStream(const RandomAccessFile& file, DType dtype) {
  if (dtype != DType::kUint16 && dtype != DType::kUint32) {
    return InvalidArgument("token_dtype is " + std::string(DTypeName(dtype)) +
                           "; it must be uint16 or uint32");
  }
  if (file.size() % DTypeSize(dtype) != 0) {
    return DataLoss("open " + QuotePath(file.path()) + ": its " + std::to_string(file.size()) +
                    " bytes are no whole number of " + std::string(DTypeName(dtype)) +
                    " tokens; token_dtype is wrong, or the file was cut");
  }
  return Stream{dtype, 0, file.size() / DTypeSize(dtype)};
}

// A headerless file does not say how wide its tokens are. Read as uint16, wider ones show: every second
// number is the high half of an id, so small.
Status CheckIsUint16(const RandomAccessFile& file) {
  constexpr uint16_t kMaxHighHalf = 15;  // of ids up to a million
  constexpr size_t kFewest = 64;         // fewer numbers may be small by chance
  std::array<uint16_t, 4096> numbers;
  const size_t count = std::min<uint64_t>(file.size() / sizeof(uint16_t), numbers.size());
  if (count < kFewest) return OkStatus();
  const std::span<uint16_t> read(numbers.data(), count);
  RETURN_IF_ERROR(file.ReadAt(0, std::as_writable_bytes(read)));
  bool low_is_large = false;
  for (size_t i = 0; i < count; ++i) {
    if (read[i] <= kMaxHighHalf) continue;
    if (i % 2 == 1) return OkStatus();
    low_is_large = true;
  }
  if (!low_is_large) return OkStatus();
  return InvalidArgument(
      "open " + QuotePath(file.path()) +
      ": read as uint16, every second number of its beginning is close to 0, as in a file of "
      "wider integers; give token_dtype uint32, or uint16 if that is meant; a file of 64-bit "
      "integers is to be written anew as one of these");
}

constexpr std::string_view kNpyExtension = ".npy";
constexpr std::string_view kFlatExtension = ".bin";

// Taking one file of several would leave the others out without a word.
Status TokensInDirectory(const Contents& contents) {
  const bool arrays = contents.flat.empty() && !contents.array.empty();
  const std::string path = QuotePath(contents.path);
  const std::string joined = QuotePath(contents.path + std::string(arrays ? kNpyExtension : kFlatExtension));
  const std::string how = arrays ? "numpy.save(" + joined +
                                       ", numpy.concatenate([numpy.load(f) for f in sorted(glob.glob(" +
                                       QuotePath(contents.path + "/*.npy") + "))])) in Python"
                                 : "cat " + path + "/*.bin > " + joined;
  return InvalidArgument("tokens dataset " + path +
                         " is a directory, and a token stream is one file: name the file, or join several in "
                         "their order (" +
                         how + ") and open that");
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
  std::optional<std::string> Recognise(const Contents& contents, const ParameterMap& options) const override {
    if (!options.contains("sequence_length")) return std::nullopt;
    if (!contents.is_directory) {
      if (!contents.path.ends_with(kNpyExtension) && !contents.path.ends_with(kFlatExtension))
        return std::nullopt;
      return "tokens";
    }
    // Which Open refuses, with advice.
    if (contents.array.empty() && contents.flat.empty()) return std::nullopt;
    return "files of tokens (such as " + QuotePath(contents.flat.empty() ? contents.array : contents.flat) +
           ")";
  }
  Result<std::shared_ptr<const Dataset>> Open(std::shared_ptr<const Location> location,
                                              const Contents& contents, const std::string& user_path,
                                              ParameterReader& options) const override {
    if (contents.is_directory) return TokensInDirectory(contents);
    TokenOptions tokens;
    tokens.sequence_length = static_cast<uint64_t>(options.Number("sequence_length", 0));
    tokens.stride = static_cast<uint64_t>(options.Number("stride", 0));
    if (const Result<DType> dtype = DTypeFromName(options.Word("token_dtype", "")); dtype.ok())
      tokens.dtype = *dtype;
    return OpenTokens(*location, user_path, tokens);
  }
};

}  // namespace

const DatasetFormat& TokensFormat() {
  static const TokensDatasetFormat format;
  return format;
}

Result<std::shared_ptr<const Dataset>> OpenTokens(const Location& base, std::string user_path,
                                                  const TokenOptions& options) {
  if (options.sequence_length == 0) {
    return InvalidArgument("tokens dataset " + QuotePath(base.path()) +
                           " needs a sequence_length of at least 1");
  }
  ASSIGN_OR_RETURN(std::unique_ptr<const RandomAccessFile> file, base.OpenFile(""));
  ASSIGN_OR_RETURN(const Stream stream, base.path().ends_with(kNpyExtension)
                                            ? NpyStream(*file, options.dtype)
                                            : FlatStream(*file, options.dtype.value_or(DType::kUint16)));
  if (!options.dtype && !base.path().ends_with(kNpyExtension)) RETURN_IF_ERROR(CheckIsUint16(*file));
  const uint64_t length = options.sequence_length;
  const uint64_t stride = options.stride == 0 ? length : options.stride;
  if (stream.tokens < length + 1) {
    return InvalidArgument("open " + QuotePath(file->path()) + ": it holds " + std::to_string(stream.tokens) +
                           " tokens, but one sample of sequence_length " + std::to_string(length) +
                           " needs " + std::to_string(length + 1));
  }
  DatasetInfo info;
  info.format = "tokens";
  info.path = std::move(user_path);
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
  info.remote = base.remote();
  return std::shared_ptr<const Dataset>(
      std::make_shared<const Tokens>(std::move(file), stream, length, stride, std::move(info)));
}

}  // namespace pinfeed

// SPDX-License-Identifier: Apache-2.0
// Long because: each kind of column and each fault of a table is a few lines of one.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/dataset/formats/table.h"
#include "server/dataset/open_dataset.h"
#include "server/dataset/selected_fields.h"
#include "tests/support/memory_storage.h"
#include "tests/support/parameters.h"
#include "tests/support/testing.h"
#include "tests/unit/dataset/npy_file.h"

namespace pinfeed {
namespace {

using ::testing::Pair;

class ManifestTest : public ::testing::Test {
 protected:
  Result<std::shared_ptr<const Dataset>> Open(const std::string& path, ParameterMap options = {}) {
    return OpenDataset(storage_.At(path), {.path = "memory:/" + path, .options = std::move(options)});
  }
  Result<std::shared_ptr<const Dataset>> OpenText(const std::string& name, const std::string& text,
                                                  ParameterMap options = {}) {
    storage_.Write("set/" + name, text);
    return Open("set/" + name, std::move(options));
  }
  static std::vector<std::string> FieldsOf(const Dataset& dataset) {
    std::vector<std::string> lines;
    for (const Field& field : dataset.info().fields) {
      std::string line = field.spec.name;
      if (field.on_request) continue;
      if (field.kind == FieldKind::kRagged) line += " ragged";
      if (field.kind != FieldKind::kEncodedImage) line += " " + std::string(DTypeName(field.spec.dtype));
      for (const int64_t side : field.spec.shape) line += " " + std::to_string(side);
      lines.push_back(line);
    }
    return lines;
  }
  template <typename T>
  static std::vector<T> Values(const Dataset& dataset, size_t field) {
    std::vector<T> all;
    for (uint64_t id = 0; id < dataset.info().samples; ++id) {
      std::vector<std::byte> bytes(dataset.info().fields[field].spec.SampleBytes().value());
      EXPECT_OK(dataset.ReadTensor(id, field, bytes));
      for (const T value : ValuesOf<T>(bytes)) all.push_back(value);
    }
    return all;
  }
  static std::string Image(const Dataset& dataset, uint64_t id) { return Bytes(dataset, id, 0); }
  static std::string Bytes(const Dataset& dataset, uint64_t id, size_t field) {
    std::vector<std::byte> bytes;
    EXPECT_OK(dataset.ReadBytes(id, field, bytes));
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  void ExpectFault(const std::string& name, const std::string& text, const std::string& words,
                   ParameterMap options = {}) {
    EXPECT_THAT(OpenText(name, text, std::move(options)),
                StatusIs(Code::kInvalidArgument, AllOf(HasSubstr("memory:/set/" + name), HasSubstr(words))));
  }

  MemoryStorage storage_;
};

TEST_F(ManifestTest, OfTwoTablesOneHasToBeNamed) {
  storage_.Write("set/metadata.csv", "a\n1\n");
  storage_.Write("set/metadata.jsonl", "{\"a\": 2}\n");
  EXPECT_THAT(Open("set"),
              StatusIs(Code::kInvalidArgument, HasSubstr("has a metadata.jsonl and a metadata.csv")));
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open("set/metadata.csv"));
  EXPECT_EQ(Values<int64_t>(*dataset, 0), (std::vector<int64_t>{1}));
}

TEST_F(ManifestTest, HuggingFacesMetadataBesideAFlatFolderOfImages) {
  storage_.Write("set/a.jpg", "bytes of a");
  storage_.Write("set/deep/b.png", "bytes of b");
  storage_.Write(
      "set/metadata.jsonl",
      "{\"file_name\": \"deep/b.png\", \"label\": \"dog\", \"score\": 1.5, \"caption\": \"a dog\"}\n"
      "\n"
      "{\"file_name\": \"a.jpg\", \"label\": \"cat\", \"score\": 2, \"caption\": \"\"}");
  EXPECT_THAT(Open("set"),
              StatusIs(Code::kInvalidArgument, AllOf(HasSubstr("'deep'"), HasSubstr("'metadata.jsonl'"),
                                                     HasSubstr("set format to image_folder or manifest"))));
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open("set", {{"label", Word("label")}}));  // a manifest's option
  const DatasetInfo& info = dataset->info();
  EXPECT_EQ(info.format, "manifest");
  EXPECT_EQ(info.samples, 2U);
  EXPECT_THAT(FieldsOf(*dataset),
              ElementsAre("image", "label int64", "caption ragged uint8 5", "score float64"));
  EXPECT_THAT(info.classes, ElementsAre("cat", "dog"));
  EXPECT_THAT(info.left_out, IsEmpty());
  EXPECT_EQ(Bytes(*dataset, 0, 2), "a dog");
  EXPECT_EQ(Bytes(*dataset, 1, 2), "");
  EXPECT_EQ(Image(*dataset, 0), "bytes of b");
  EXPECT_EQ(Image(*dataset, 1), "bytes of a");
  EXPECT_THAT(Values<int64_t>(*dataset, 1), ElementsAre(1, 0));
  EXPECT_THAT(Values<double>(*dataset, 3), ElementsAre(1.5, 2));
  EXPECT_THAT(dataset->Describe(0), EndsWith("set/deep/b.png"));
  ASSERT_OK_AND_ASSIGN(const auto with_path, SelectFields(dataset, {}, true));
  ASSERT_EQ(with_path->info().fields.size(), 5U);
  EXPECT_EQ(Bytes(*with_path, 0, 4), "deep/b.png");
  EXPECT_EQ(Bytes(*with_path, 1, 4), "a.jpg");
}

TEST_F(ManifestTest, TableThatIsRewrittenWhileItIsReadIsRefused) {
  const std::string table = "path,note\n1.jpg,one\n2.jpg,two\n";
  for (const std::string& later :
       {std::string("path:note\n1.jpg;one\n2.jpg;two\n"), std::string("note,path\n1.jpg,one\n2.jpg,two\n"),
        std::string("path\n1.jpg\n2.jpg\n3.jpg\n4.jpg\n"), std::string("path,note\na,b\nc,d\ne,f\ng,h\n"),
        std::string("path,note\n2.jpg,two\n1.jpg,one\n")}) {
    SCOPED_TRACE(later);
    storage_.Write("set/a.csv", table);
    std::string rewritten = later;
    rewritten.resize(table.size(), '\n');
    storage_.RewriteBeforeSecondPass("set/a.csv", rewritten);
    EXPECT_THAT(Open("set/a.csv", {{"image", Word("path")}}),
                StatusIs(Code::kDataLoss, HasSubstr("it changed while it was read")));
  }
}

TEST_F(ManifestTest, ATableThatEndsWithinARowIsWatchedForAWhile) {
  const TempDir dir;
  const std::string path = dir.Write("t.csv", std::string_view("a\n1\n3")).string();
  // A time that says nothing, as any program may set it.
  std::filesystem::last_write_time(path,
                                   std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  auto opened = std::async(std::launch::async, [&] {
    DatasetSpec spec;
    spec.path = path;
    return OpenDataset(ResolveLocation(path, {dir.path().string()}).value(), spec);
  });
  EXPECT_EQ(opened.wait_for(std::chrono::milliseconds(500)), std::future_status::timeout);
  std::ofstream(path, std::ios::app) << "4\n";
  EXPECT_THAT(opened.get(), StatusIs(Code::kDataLoss, HasSubstr("it is being written")));
}

TEST_F(ManifestTest, ATableThatIsBeingWrittenIsRefused) {
  const TempDir dir;
  const std::string path = dir.Write("t.csv", std::string_view("a,b\n")).string();
  const auto open = [&] {
    DatasetSpec spec;
    spec.path = path;
    return OpenDataset(ResolveLocation(path, {dir.path().string()}).value(), spec);
  };
  std::atomic<bool> stop = false;
  std::promise<void> begun;
  std::thread writer([&] {
    std::ofstream table(path, std::ios::app);
    table << "1,2";
    for (int64_t a = 2; !stop || a < 3; ++a) {
      table << '\n' << a << ',' << 2 * a << std::flush;  // all but the last digits are there already
      if (a == 2) begun.set_value();
      std::this_thread::yield();
    }
    table << '\n';
  });
  begun.get_future().wait();
  EXPECT_THAT(open(), StatusIs(Code::kDataLoss, AllOf(HasSubstr(path), HasSubstr("it is being written"))));
  stop = true;
  writer.join();
  ASSERT_OK_AND_ASSIGN(const auto complete, open());
  const std::vector<int64_t> a = Values<int64_t>(*complete, 0);
  const std::vector<int64_t> b = Values<int64_t>(*complete, 1);
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(b[i], 2 * a[i]);
}

TEST_F(ManifestTest, ColumnOfEmptyTextsNamesNoImages) {
  ASSERT_OK_AND_ASSIGN(const auto dataset, OpenText("a.csv", "text,note\n\"hello\",\"\"\n\"bye\",\"\"\n"));
  EXPECT_THAT(FieldsOf(*dataset), Contains("text ragged uint8 5"));
}

TEST_F(ManifestTest, ATableByItsOwnNameAndItsColumns) {
  storage_.Write("set/x/1.jpg", "one");
  storage_.Write("set/x/2.jpg", "two");
  const ParameterMap options = {{"image", Word("path")}, {"label", Word("y")}};
  for (const auto& [name, text] :
       {std::pair("t.csv", "path,y,weight\r\nx/1.jpg,-7,0.5\r\nx/2.jpg,8,2\r\n"),
        std::pair("t.tsv", "path\ty\tweight\nx/1.jpg\t-7\t0.5\nx/2.jpg\t8\t2"),
        std::pair("t.jsonl",
                  "{\"path\":\"x/1.jpg\",\"y\":-7,\"weight\":0.5}\n{\"y\":8,\"path\":\"x/"
                  "2.jpg\",\"weight\":2}\n")}) {
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(const auto dataset, OpenText(name, text, options));
    EXPECT_THAT(FieldsOf(*dataset), ElementsAre("image", "label int64", "weight float64"));
    EXPECT_THAT(dataset->info().classes, IsEmpty());
    EXPECT_EQ(Image(*dataset, 1), "two");
    EXPECT_THAT(Values<int64_t>(*dataset, 1), ElementsAre(-7, 8));
    EXPECT_THAT(Values<double>(*dataset, 2), ElementsAre(0.5, 2));
  }
}

TEST_F(ManifestTest, ColumnsOfEveryKindWithoutImages) {
  ASSERT_OK_AND_ASSIGN(
      const auto dataset,
      OpenText("t.jsonl",
               "{\"flag\": true, \"box\": [1, 2, 3, 4], \"point\": [0.5, 1], \"ragged\": [], "
               "\"deep\": {\"a\": 1}, \"huge\": 18446744073709551615, \"late\": 1}\n"
               "{\"flag\": false, \"box\": [5, 6, 7, 8], \"point\": [2, 3], \"ragged\": [1, 2], "
               "\"deep\": {\"a\": 1}, \"huge\": 1, \"only_here\": 2}\n"));
  EXPECT_THAT(FieldsOf(*dataset),
              ElementsAre("box int64 4", "flag bool", "point float64 2", "ragged ragged int64 2"));
  EXPECT_THAT(Values<int64_t>(*dataset, 0), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(Values<uint8_t>(*dataset, 1), ElementsAre(1, 0));
  EXPECT_THAT(Values<double>(*dataset, 2), ElementsAre(0.5, 1, 2, 3));
  EXPECT_THAT(dataset->info().left_out, ElementsAre(Pair("deep", HasSubstr("neither a number")),
                                                    Pair("huge", HasSubstr("neither a number")),
                                                    Pair("late", "line 2 has no value for it"),
                                                    Pair("only_here", "line 1 has no value for it")));
  EXPECT_EQ(Bytes(*dataset, 0, 3), "");
  EXPECT_EQ(Bytes(*dataset, 1, 3).size(), 2 * sizeof(int64_t));
  EXPECT_THAT(dataset->Describe(1), EndsWith("set/t.jsonl[1]"));
  EXPECT_THAT(
      SelectFields(dataset, {"late"}),
      StatusIs(Code::kInvalidArgument, HasSubstr("is not available as a field: line 2 has no value")));
  EXPECT_THAT(SelectFields(dataset, {}, true),
              StatusIs(Code::kInvalidArgument, HasSubstr("sample_path: the samples of the dataset")));
}

// A cell of a text file has no type of its own, so the column decides.
TEST_F(ManifestTest, ATextColumnMayHoldEmptyCellsAndNumbers) {
  for (const char separator : {',', '\t'}) {
    std::string text =
        "n,t,quoted,gaps\n1,,\"\",1\n2,12,b,\n3,0.50,7,3\n4,99999999999999999999,\"x,\n\",4\n5,a,,5\n";
    std::ranges::replace(text, ',', separator);
    ASSERT_OK_AND_ASSIGN(const auto dataset, OpenText(separator == ',' ? "t.csv" : "t.tsv", text));
    EXPECT_THAT(FieldsOf(*dataset), ElementsAre("n int64", "t ragged uint8 20", "quoted ragged uint8 3"));
    std::vector<std::string> texts;
    for (uint64_t id = 0; id < 5; ++id) texts.push_back(Bytes(*dataset, id, 1));
    EXPECT_THAT(texts, ElementsAre("", "12", "0.50", "99999999999999999999", "a"));
    EXPECT_EQ(Bytes(*dataset, 2, 2), "7");
    EXPECT_EQ(Bytes(*dataset, 3, 2), std::string("x") + separator + "\n");
    EXPECT_EQ(Bytes(*dataset, 4, 2), "");
    EXPECT_THAT(dataset->info().left_out, ElementsAre(Pair("gaps", "line 3 has no value for it")));
  }
  ASSERT_OK_AND_ASSIGN(const auto numbers, OpenText("q.csv", "n,m\n1,1\n2,\"\"\n"));
  EXPECT_THAT(FieldsOf(*numbers), ElementsAre("n int64"));  // an empty cell makes no texts of numbers
  ASSERT_OK_AND_ASSIGN(const auto typed, OpenText("t.jsonl", "{\"a\":\"x\",\"n\":1}\n{\"a\":2,\"n\":2}\n"));
  EXPECT_THAT(typed->info().left_out, ElementsAre(Pair("a", HasSubstr("line 2 has another type of value"))));
}

TEST_F(ManifestTest, AColumnOfPathsMayLookLikeNumbersButNotBeEmpty) {
  storage_.Write("set/7", "seven");
  ASSERT_OK_AND_ASSIGN(const auto dataset, OpenText("t.csv", "file_name\na.jpg\n7\n"));
  EXPECT_EQ(Image(*dataset, 1), "seven");
  ExpectFault("t.csv", "file_name,n\na.jpg,1\n,2\n", "line 3 of ");
  ExpectFault("t.csv", "file_name,n\na.jpg,1\n,2\n", "image path '' is empty");
}

TEST_F(ManifestTest, LabelsAreAllNumbersOrAllTexts) {
  ExpectFault("t.csv", "label\n1\nN/A\n", "'label' cannot be a label: line 3 has another type of value");
  ExpectFault("t.csv", "label,x\ncat,1\n,2\n",
              "'label' cannot be a label: line 3 has no value for it; give each row");
}

TEST_F(ManifestTest, ListsOfIntegersAndRealsAreRealsOfAllLengths) {
  ASSERT_OK_AND_ASSIGN(const auto dataset,
                       OpenText("t.jsonl", "{\"v\": [1]}\n{\"v\": [0.5, 2]}\n{\"v\": []}\n"));
  EXPECT_THAT(FieldsOf(*dataset), ElementsAre("v ragged float64 2"));
  const std::string bytes = Bytes(*dataset, 0, 0) + Bytes(*dataset, 1, 0) + Bytes(*dataset, 2, 0);
  EXPECT_THAT(ValuesOf<double>(std::as_bytes(std::span(bytes))), ElementsAre(1, 0.5, 2));
  EXPECT_THAT(OpenText("empty.jsonl", "{\"v\": [], \"n\": 1}\n").value()->info().left_out,
              ElementsAre(Pair("v", "all its lists are empty")));
}

TEST_F(ManifestTest, ListsOfListsAreRowsOfOneLength) {
  ASSERT_OK_AND_ASSIGN(
      const auto dataset,
      OpenText(
          "t.jsonl",
          "{\"boxes\": [], \"grid\": [[1, 2], [3, 4]], \"odd\": [[1, 2]], \"inner\": [[1], [2, 3]], "
          "\"deep\": "
          "[[[1]]], \"texts\": [[\"a\"]], \"half\": [[1], 2], \"none\": [[], []]}\n"
          "{\"boxes\": [[1, 2, 3, 4], [5, 6, 7, 8.5]], \"grid\": [[5, 6], [7, 8]], \"odd\": [[1]], "
          "\"inner\": [], "
          "\"deep\": [], \"texts\": [], \"half\": [], \"none\": []}\n"
          "{\"boxes\": [[9, 9, 9, 9]], \"grid\": [[0, 0], [0, 0]], \"odd\": [], \"inner\": [], \"deep\": [], "
          "\"texts\": [], \"half\": [], \"none\": []}\n"));
  EXPECT_THAT(FieldsOf(*dataset), ElementsAre("boxes ragged float64 2 4", "grid int64 2 2"));
  const std::string bytes = Bytes(*dataset, 0, 0) + Bytes(*dataset, 1, 0) + Bytes(*dataset, 2, 0);
  EXPECT_THAT(ValuesOf<double>(std::as_bytes(std::span(bytes))),
              ElementsAre(1, 2, 3, 4, 5, 6, 7, 8.5, 9, 9, 9, 9));
  EXPECT_EQ(Bytes(*dataset, 2, 0).size(), 4 * sizeof(double));
  EXPECT_THAT(Values<int64_t>(*dataset, 1), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0));
  const auto no_value = HasSubstr("line 1 has a value for it that is neither a number");
  EXPECT_THAT(
      dataset->info().left_out,
      ElementsAre(Pair("deep", no_value), Pair("half", no_value), Pair("inner", no_value),
                  Pair("none", no_value), Pair("odd", HasSubstr("line 2 has lists of another length")),
                  Pair("texts", no_value)));
}

// The same bytes, cut elsewhere, are other samples.
TEST_F(ManifestTest, FingerprintsTellWhereTextsEnd) {
  ASSERT_OK_AND_ASSIGN(const auto one, OpenText("a.csv", "t\nab\nc\nd\n"));
  ASSERT_OK_AND_ASSIGN(const auto other, OpenText("b.csv", "t\na\nbc\nd\n"));
  EXPECT_NE(one->info().fingerprint, other->info().fingerprint);
}

TEST_F(ManifestTest, AColumnOfTheNameOfThePathsIsTheDatasets) {
  ASSERT_OK_AND_ASSIGN(const auto dataset, OpenText("t.csv", "file_name,sample_path\na.jpg,7\n"));
  EXPECT_THAT(FieldsOf(*dataset), ElementsAre("image", "sample_path int64"));
  EXPECT_THAT(SelectFields(dataset, {}, true),
              StatusIs(Code::kInvalidArgument, HasSubstr("has a field of that name of its own")));
}

TEST_F(ManifestTest, QuotedValuesMayHoldAnything) {
  storage_.Write("set/a, \"b\".jpg", "odd");
  ASSERT_OK_AND_ASSIGN(const auto dataset,
                       OpenText("t.csv",
                                "\xEF\xBB\xBF"
                                "\"file_name\",label\n\"a, \"\"b\"\".jpg\",\"two\nlines\"\n\n\"a, "
                                "\"\"b\"\".jpg\",\"007\"\n"));
  EXPECT_EQ(Image(*dataset, 0), "odd");
  EXPECT_THAT(dataset->info().classes, ElementsAre("007", "two\nlines"));
}

// A table is read in windows: each byte of these rows once begins one.
// As Python's csv.writer writes them on Windows without newline="". No other carriage return is read:
// Python's readers end a row there.
TEST_F(ManifestTest, ALineMayEndInTwoCarriageReturns) {
  ASSERT_OK_AND_ASSIGN(const auto table, OpenText("t.csv", "x,label\r\r\n1,\"cat\"\r\r\n2,dog\r\r\n"));
  EXPECT_EQ(table->info().samples, 2U);
  EXPECT_EQ(table->info().classes, (std::vector<std::string>{"cat", "dog"}));
  EXPECT_TRUE(table->info().left_out.empty());
  ExpectFault("t.csv", "x,y\n1,a\rb\n", "line 2 of ");
  ExpectFault("t.csv", "x,label\r1,2\r3,4\r", "a carriage return stands within a line");
}

TEST_F(ManifestTest, RowsMayLieAcrossTwoWindows) {
  constexpr size_t kWindow = size_t{1} << 20;
  const std::string rows = "1,\"x\"\"y\r\nz,\"\r\n2,w\r\n\n3,\"\"\r\n";
  for (size_t before = 0; before <= rows.size(); ++before) {
    SCOPED_TRACE(before);
    const std::string start = "a,t\n0,";
    const std::string filler(kWindow - before - start.size() - 1, 'f');
    ASSERT_OK_AND_ASSIGN(auto table, OpenText("a.csv", start + filler + "\n" + rows));
    EXPECT_THAT(Values<int64_t>(*table, 0), ElementsAre(0, 1, 2, 3));
    EXPECT_EQ(Bytes(*table, 1, 1), "x\"y\r\nz,");
    EXPECT_EQ(Bytes(*table, 2, 1), "w");
    EXPECT_EQ(Bytes(*table, 3, 1), "");
    if (before == rows.size() / 2) ExpectFault("b.csv", start + filler + "\n" + rows + "4\n", "line 8 of");
  }
  const std::string lines = "{\"a\":1}\n\n{\"a\":23}";
  for (size_t before = 0; before <= lines.size(); ++before) {
    const std::string filler(kWindow - before - 1, ' ');
    ASSERT_OK_AND_ASSIGN(auto table, OpenText("a.jsonl", filler + "\n" + lines));
    EXPECT_THAT(Values<int64_t>(*table, 0), ElementsAre(1, 23)) << before;
  }
}

// As float64 the integers of the other rows would change.
TEST_F(ManifestTest, IntegersThatFloat64HasNotLeaveTheirColumnOut) {
  const auto open = [&](const std::string& first, const std::string& second) {
    return OpenText("t.jsonl", R"({"v": )" + first +
                                   R"(, "text\\\"": "18446744073709551616\\", "n": 1})"
                                   "\n"
                                   R"({"v": )" +
                                   second +
                                   R"(, "n": 2})"
                                   "\n");
  };
  for (const auto& [one, other] :
       std::vector<std::pair<std::string, std::string>>{{"9007199254740993", "18446744073709551616"},
                                                        {"9223372036854775808", "1"},
                                                        {"-9223372036854775809", "1"},
                                                        {"[1, 2]", "[18446744073709551616, 1]"},
                                                        {"9007199254740993", "0.5"},
                                                        {"0.5", "-9007199254740993"},
                                                        {"[9007199254740993]", "[0.5]"},
                                                        {"[9007199254740993, 0.5]", "[1]"},
                                                        {"[[0.5, -9007199254740993]]", "[[1, 2]]"},
                                                        {"[[0.5]]", "[[9007199254740993]]"}}) {
    ASSERT_OK_AND_ASSIGN(const auto dataset, open(one, other));
    EXPECT_THAT(FieldsOf(*dataset), ElementsAre("n int64")) << one << ' ' << other;
    EXPECT_THAT(dataset->info().left_out, Contains(Pair("v", HasSubstr("integer")))) << one << ' ' << other;
    ASSERT_OK_AND_ASSIGN(const auto turned, open(other, one));
    EXPECT_THAT(turned->info().left_out, Contains(Pair("v", HasSubstr("integer")))) << other << ' ' << one;
    ExpectFault("label.jsonl", "{\"label\": " + one + "}\n{\"label\": " + other + "}\n", "integer");
  }
  ASSERT_OK_AND_ASSIGN(const auto kept, open("9007199254740992", "1e20"));
  EXPECT_EQ(Values<double>(*kept, 1), (std::vector<double>{9007199254740992.0, 1e20}));
  ASSERT_OK_AND_ASSIGN(const auto exact, open("9223372036854775807", "-9223372036854775808"));
  EXPECT_EQ(Values<int64_t>(*exact, 1), (std::vector<int64_t>{INT64_MAX, INT64_MIN}));
  std::string many = "{\"n\": 1, \"v\": [1e20";
  while (many.size() < kMaxRowBytes - 10) many += ",1e20";
  EXPECT_THAT(OpenText("many.jsonl", many + "]}\n").value()->info().left_out, IsEmpty());
  // Beside integers of as many characters as 2^64 has.
  ASSERT_OK_AND_ASSIGN(const auto beside,
                       OpenText("beside.jsonl", R"({"n": -9223372036854775808, "v": 1e300})"
                                                "\n"));
  EXPECT_THAT(FieldsOf(*beside), ElementsAre("n int64", "v float64"));
  ExpectFault("only.jsonl", "{\"v\": 9223372036854775808}\n",
              "no column can be a field ('v': line 1 has a value");
}

TEST_F(ManifestTest, ColumnsWhoseNamesAreTakenOrNoNamesAreLeftOut) {
  ASSERT_OK_AND_ASSIGN(const auto dataset, OpenText("t.csv", ",file,image,it's,label,y\n0,a.jpg,2,3,4,5\n",
                                                    {{"image", Word("file")}, {"label", Word("y")}}));
  EXPECT_THAT(FieldsOf(*dataset), ElementsAre("image", "label int64"));
  EXPECT_THAT(Values<int64_t>(*dataset, 1), ElementsAre(5));
  EXPECT_THAT(dataset->info().left_out, ElementsAre(Pair("", HasSubstr("its name must be text")),
                                                    Pair("image", HasSubstr("another column")),
                                                    Pair("it's", HasSubstr("its name must be text")),
                                                    Pair("label", HasSubstr("another column"))));
}

TEST_F(ManifestTest, RangesDatesAndVersionsAreTexts) {
  for (const char* label : {"18-25", "2020-01-01", "1.2.0", "-", "."}) {
    SCOPED_TRACE(label);
    ASSERT_OK_AND_ASSIGN(const auto dataset,
                         OpenText("t.jsonl", "{\"label\": \"" + std::string(label) + "\"}\n"));
    EXPECT_THAT(dataset->info().classes, ElementsAre(label));
  }
}

// Texts are numbered in the order of texts, so numbers must not be taken for texts.
TEST_F(ManifestTest, NumbersAreNumbersHoweverTheyAreWritten) {
  ASSERT_OK_AND_ASSIGN(const auto quoted, OpenText("t.csv", "\"label\"\n\"10\"\n\"9\"\n\"0\"\n"));
  EXPECT_THAT(Values<int64_t>(*quoted, 0), ElementsAre(10, 9, 0));
  ExpectFault("t.csv", "x,label\n1, 10\n2, 9\n", "numbers as text, such as ' 10'");
  ExpectFault("t.csv", "label\n+10\n+9\n", "numbers as text");
  ExpectFault("t.csv", "label\n-1.5 \n .5\n", "numbers as text");
  ExpectFault("t.jsonl", "{\"label\": \"10\"}\n{\"label\": \"9\"}\n", "numbers as text");
  ExpectFault("t.csv", "x, label\n1,2\n", "the column ' label' has spaces around its name");
  ExpectFault("t.jsonl", "{\"label\": \"a\\u0000\"}\n", "holds a NUL byte");
  ExpectFault("t.csv", "label\n9223372036854775808\n",
              "cannot be a label: line 2 has a value for it that is neither a number");
}

TEST_F(ManifestTest, RealsThatAreTooSmallForFloat64AreZero) {
  for (const auto& [name, text] :
       {std::pair("t.csv", "x\n0.5\n1e-400\n-3e-999\n"),
        std::pair("t.jsonl", "{\"x\": 0.5}\n{\"x\": 1e-400}\n{\"x\": -3e-999}\n")}) {
    ASSERT_OK_AND_ASSIGN(const auto small, OpenText(name, text));
    EXPECT_THAT(Values<double>(*small, 0), ElementsAre(0.5, 0, 0)) << name;
  }
}

TEST_F(ManifestTest, RowsAreBounded) {
  ExpectFault("t.csv", "a\n" + std::string(5000, ','), "there are more than 1024 columns");
  ExpectFault("t.jsonl", "{\"a\": \"" + std::string(kMaxRowBytes, 'x') + "\"}",
              "a row has more than 1048576 bytes");
  ExpectFault("t.csv", "a\nb\n" + std::string(kMaxRowBytes + 1, 'x') + "\n", "line 3 of ");
  ExpectFault("t.csv", "a\nb\n\"" + std::string(kMaxRowBytes, 'x') + "\"\n",
              "a row has more than 1048576 bytes");
  EXPECT_OK(OpenText("t.csv", "a\n" + std::string(kMaxRowBytes + 1, '\n') + "b\n"));  // lines, not a row
  const auto row = [](char key) { return "{\"" + std::string(600'000, key) + "\": 1}\n"; };
  ExpectFault("t.jsonl", row('a') + row('b'), "the rows' keys have more than 1048576 bytes");
}

TEST_F(ManifestTest, FaultsNameTheLine) {
  ExpectFault("t.jsonl", "{\"x\": 1}\n{\"x\": }\n", "line 2 of ");
  ExpectFault("t.jsonl", "{\"x\": 1}\n[1]\n", "is not a JSON object");
  ExpectFault("t.jsonl", "\n\n", "it has no rows");
  ExpectFault("t.csv", "", "the file has no row");
  ExpectFault("t.csv", "a,b\n", "it has no rows");
  ExpectFault("t.csv", "a,b\n1,2\n1\n", "the row has 1 values, but there are 2 columns");
  ExpectFault("t.csv", "a,a\n1,2\n", "the column 'a' appears twice; the first row must name each once");
  ExpectFault("t.csv", "0.png,0\n1.png,1\n", "'0.png' names an image: write names above the first row");
  ExpectFault("t.csv", "5.1,3.5,0\n4.9,3.0,1\n", "all that it holds are numbers, such as '5.1'; write names");
  ExpectFault("t.csv", "7,0,0\n2,0,0\n", "all that it holds are numbers, such as '7'");
  ExpectFault("t.csv", "5\n6\n", "all that it holds are numbers, such as '5'");
  ExpectFault("t.csv", "5.1,3.5,setosa\n4.9,3.0,setosa\n", "'5.1' in the first row is a number");
  ExpectFault("t.csv", "-3,7,cat\n4,8,dog\n", "'-3' in the first row is a number");
  ExpectFault("t.csv", "5,,7\n8,9,1\n", "all that it holds are numbers, such as '5'");
  ExpectFault("t.csv", "00501,3\n10001,4\n", "all that it holds are numbers, such as '00501'");
  ExpectFault("t.csv", "7,99999999999999999999\n8,2\n", "all that it holds are numbers, such as '7'");
  ExpectFault("t.csv", "2019,2020\n7,8\n", "if these are the names, begin one with a letter");
  EXPECT_OK(OpenText("t.csv", "0,1,2\n5,6,8\n"));  // as pandas names columns
  EXPECT_OK(OpenText("t.csv", "label,17,4\n5,6,8\n"));
  EXPECT_OK(OpenText("t.csv", ",2019,2020\n0,7,8\n"));  // as pandas leaves its index without a name
  ExpectFault("t.csv", "a\n\"1\n", "a quote is never closed");
  ExpectFault("t.csv", "a\n1\"2\n", "a value contains a quote");
  ExpectFault("t.csv", "\xff\xfex\n1\n", "the file is UTF-16");
  ExpectFault("t.csv", std::string("\xff\xfex\0\r\0\n\0", 8), "the file is UTF-16");
  ExpectFault("t.csv", "x;y\n1;2\n", "names one column with a semicolon, 'x;y'");
  ExpectFault("t.csv", "x\ty\n1\t2\n", "names one column with a tab, 'x\\ty'");
  ExpectFault("t.tsv", "x,y\n1,2\n", "names one column with a comma, 'x,y'");
  EXPECT_OK(OpenText("t.tsv", "\"x,y\"\n1\n"));  // it is meant so
  ExpectFault("t.csv", "x,label\n1,cat\n2,\xe4\n",
              "line 3: the text '\\xe4' of the column 'label' is not UTF-8");
  EXPECT_OK(OpenText("t.csv", "file_name,x\n\xe4.jpg,1\n"));  // a path may be any bytes
}

TEST_F(ManifestTest, ColumnsThatCannotServeAreRefused) {
  const std::string text = "file,y,z\na.jpg,1,2\nb.jpg,,2\n";
  ExpectFault("t.csv", text, "there is no column 'path', only 'file', 'y', 'z'", {{"image", Word("path")}});
  ExpectFault("t.csv", text, "there is no column 'label', only", {{"label", Word("label")}});
  ExpectFault("t.csv", text, "'y' cannot be a label: line 3 has no value for it", {{"label", Word("y")}});
  ExpectFault("t.csv", text, "'z' must hold the images' paths; it holds numbers", {{"image", Word("z")}});
  ExpectFault("t.csv", "file\na.jpg\n", "'file' names images, but they would not be read: set image to it");
}

TEST_F(ManifestTest, ImagePathsStayInTheFolder) {
  for (const auto& [path, words] :
       {std::pair("/etc/passwd", "is absolute"), std::pair("../secret.jpg", "has '..' in it"),
        std::pair("a/../../b.jpg", "has '..' in it"), std::pair("s3://b/a.jpg", "not a path"),
        std::pair("a.tif", "of an unsupported format")}) {
    ExpectFault("t.jsonl", "{\"file_name\": \"a.jpg\"}\n{\"file_name\": \"" + std::string(path) + "\"}\n",
                words);
  }
  ExpectFault("t.jsonl", "{\"file_name\": \"\"}\n", "is empty");
}

TEST_F(ManifestTest, FingerprintFollowsTheImagesAndTheFields) {
  const auto fingerprint = [&](const std::string& text) {
    const auto dataset = OpenText("t.csv", text);
    EXPECT_OK(dataset);
    return (*dataset)->info().fingerprint;
  };
  const std::string first = fingerprint("file_name,label\na.jpg,1\nb.jpg,2\n");
  EXPECT_EQ(fingerprint("file_name,label\na.jpg,1\nb.jpg,2\n"), first);
  EXPECT_NE(fingerprint("file_name,label\na.jpg,2\nb.jpg,1\n"), first);
  EXPECT_NE(fingerprint("file_name,label\nb.jpg,1\na.jpg,2\n"), first);
  EXPECT_NE(fingerprint("file_name,label\na.jpg,x\nb.jpg,y\n"),
            fingerprint("file_name,label\na.jpg,x\nb.jpg,z\n"));
}

TEST_F(ManifestTest, AMissingImageIsThatSamplesFault) {
  ASSERT_OK_AND_ASSIGN(const auto dataset, OpenText("t.csv", "file_name\nnone.jpg\n"));
  std::vector<std::byte> bytes;
  EXPECT_THAT(dataset->ReadBytes(0, 0, bytes), StatusIs(Code::kNotFound, HasSubstr("none.jpg")));
}

}  // namespace
}  // namespace pinfeed

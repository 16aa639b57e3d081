# SPDX-License-Identifier: Apache-2.0
"""The check of opens finds each way to a file that is not the helper's, and nothing else."""

import pathlib
import unittest

from tree_check import run_on

CHECK = pathlib.Path(__file__).parent / "check_opens"


class CheckOpens(unittest.TestCase):
    def run_on(self, files: dict[str, str]) -> tuple[int, str]:
        return run_on(CHECK, files)

    def test_the_helper_names_and_comments_pass(self) -> None:
        code, out = self.run_on(
            {
                "src/store/a.cc": """
                    #include <fstream>
                    // ::open(path) would follow a link; so would std::filesystem::exists(path).
                    const auto fd = run_files::OpenToRead(path);
                    const std::filesystem::path whole = fs::absolute(run) / "unlink(x)";
                    std::vector<int> open(nodes);
                    acceptor_.open(endpoint);
                    spans->open(1);
                    list.remove(1); ::fstatvfs(fd, &info); std::erase(v, 1);
                    Unlink(path); run_files::Rename(a, b); Table<int>::open(1);
                    std::remove(v.begin(), v.end(), F(0, 1)); const auto g = std::bind(f, x);
                    std::vector<std::pair<int, int>> open(nodes); Node& link(Node* parent);
                    const Node* const access(nodes); struct ::stat about; Move(Node&& link, int stat);
                    Wait(1'000, 'x', "::open(p)", 0xFF'FF, u8'x', L'\\'');  // ::open(p), 2'000
                    auto in = arrow::io::ReadableFile::Open(fd.get());
                    auto out = arrow::io::FileOutputStream::Open(part_fd_);
                    ::syscall(SYS_gettid); reader.status(); reader_.file_size();
                    namespace fs = std::filesystem; using namespace std::chrono_literals;
                    const int glob = open + link; if (stat && access) return;
                """,
                "src/store/a_test.cc": "std::ofstream(path) << 1;",
            }
        )
        self.assertEqual((code, out), (0, ""))

    def test_every_other_way_is_found_with_its_line(self) -> None:
        ways = {
            "::open(p, O_RDONLY)": "open",
            "return open(p, O_RDONLY)": "open",
            "if (open(p, 0) < 0)": "open",
            "::openat(at, p, O_RDONLY)": "openat",
            "std::fopen(p, mode)": "fopen",
            "std::ifstream in(p)": "ifstream",
            "std::ofstream(p) << 1": "ofstream",
            "::opendir(p)": "opendir",
            "std::filesystem::exists(p)": "exists",
            "fs::create_directories(p)": "create_directories",
            "fs::directory_iterator at(p)": "directory_iterator",
            "std::filesystem::copy(p, q)": "copy",
            "std::filesystem::remove_all(p)": "remove_all",
            "::rename(p, q)": "rename",
            "::unlink(p)": "unlink",
            "::symlink(p, q)": "symlink",
            "::mkdir(p, 0700)": "mkdir",
            "::stat(p, &info)": "stat",
            "::statvfs(p, &info)": "statvfs",
            "::statfs(p, &info)": "statfs",
            "std::filesystem::space(p)": "space",
            "::remove(p)": "remove",
            "std::remove(p)": "remove",
            "::chown(p, 0, 0)": "chown",
            "::fchownat(at, p, 0, 0, 0)": "fchownat",
            "::chdir(p)": "chdir",
            "::bind(fd, address, size)": "bind",
            "::connect(fd, address, size)": "connect",
            "parquet::ParquetFileReader::OpenFile(p)": "OpenFile",
            "if (a && unlink(p) == 0)": "unlink",
            "if (a) b(); else unlink(p)": "unlink",
            "do rename(a, b); while (x)": "rename",
            "n > open(p)": "open",
            "flags & open(p)": "open",
            "return x && rename(a, b)": "rename",
            "co_await open(p)": "open",
            "co_return unlink(p)": "unlink",
            "throw open(p)": "open",
            "x = a * mkdir(p)": "mkdir",
            "#define REMOVE unlink(p)": "unlink",
            "Wait(1'000, ::open(p, 0), 2'000)": "open",
            "Wait(0xF'F, L'x', ::open(p, 0), 'y')": "open",
            "auto f = ::open; f(p, 0)": "open",
            "Call(&::unlink, p)": "unlink",
            "auto f = std::rename": "rename",
            "std::remove(Named(a, b, c))": "remove",
            "syscall(SYS_openat, at, p, 0)": "openat",
            "::syscall(__NR_openat2, at, p)": "openat2",
            "::syscall(number, p)": "syscall",
            "open64(p, 0)": "open64",
            "fopen64(p, mode)": "fopen64",
            "std::wifstream in(p)": "wifstream",
            "std::basic_ifstream<char> in(p)": "basic_ifstream",
            "arrow::io::ReadableFile::Open(p)": "ReadableFile",
            "arrow::io::ReadableFile::Open(fd_path)": "ReadableFile",
            "arrow::io::FileOutputStream::Open(p, true)": "FileOutputStream",
            "namespace stdfs = std::filesystem": "namespace stdfs = std::filesystem",
            "namespace other = fs": "namespace other = fs",
            "using namespace std::filesystem": "using namespace std::filesystem",
            "using namespace fs": "using namespace fs",
            "using std::filesystem::exists": "exists",
            "entry.is_directory()": "is_directory",
            "at->is_symlink(error)": "is_symlink",
            "entry.file_size(error)": "file_size",
            "popen(p, mode)": "popen",
            "::dlopen(p, RTLD_NOW)": "dlopen",
            "::posix_spawn(&pid, p, a, b, c, d)": "posix_spawn",
            "::execv(p, words)": "execv",
            "mktemp(p)": "mktemp",
            "eaccess(p, R_OK)": "eaccess",
            "faccessat2(at, p, R_OK, 0)": "faccessat2",
            "getxattr(p, name, out, 1)": "getxattr",
            "lgetxattr(p, name, out, 1)": "lgetxattr",
            "lsetxattr(p, name, in, 1, 0)": "lsetxattr",
            "fanotify_mark(fd, 0, 0, at, p)": "fanotify_mark",
            "name_to_handle_at(at, p, a, b, 0)": "name_to_handle_at",
        }
        for way, name in ways.items():
            with self.subTest(way):
                code, out = self.run_on({"src/store/a.cc": f"int a;\n{way};\n"})
                self.assertEqual(code, 1)
                self.assertIn(f"src/store/a.cc:2: {name}: ", out)

    def test_what_the_table_allows_is_for_that_file_alone(self) -> None:
        self.assertEqual(self.run_on({"src/cli/output.cc": "::open(null, mode);"}), (0, ""))
        code, out = self.run_on({"src/cli/output.cc": "::open(null, mode); ::unlink(p);"})
        self.assertEqual(code, 1)
        self.assertIn("src/cli/output.cc:1: unlink", out)

    def test_the_table_holds_nothing_that_is_not_done(self) -> None:
        code, out = self.run_on({"src/cli/output.cc": "int a;"})
        self.assertEqual(code, 1)
        self.assertIn("src/cli/output.cc does not call open", out)

    def test_an_empty_tree_is_an_error(self) -> None:
        self.assertEqual(self.run_on({})[0], 1)


if __name__ == "__main__":
    unittest.main()

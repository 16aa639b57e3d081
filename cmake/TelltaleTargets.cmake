# Functions that every folder of src/ uses: one library, its unit tests, its warnings.

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

option(TELLTALE_SANITIZE "sanitizers, as -fsanitize= takes them" "")
option(TELLTALE_FUZZ "programs of libFuzzer's, which clang alone has: the preset fuzz" OFF)

add_library(telltale_options INTERFACE)
target_compile_options(telltale_options INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor
                                                  -Wno-missing-field-initializers -Werror)
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # GCC takes a source that is included for a header, whose anonymous namespaces would be an error.
  target_compile_options(telltale_options INTERFACE -Wno-subobject-linkage)
endif()
if(TELLTALE_SANITIZE)
  # Undefined behaviour ends the test: by itself it is a line that nobody reads where the test passes.
  # Of float-cast-overflow GCC speaks apart.
  target_compile_options(telltale_options INTERFACE -fsanitize=${TELLTALE_SANITIZE}
                                                    -fno-sanitize-recover=undefined,float-cast-overflow
                                                    -fno-omit-frame-pointer)
  target_link_options(telltale_options INTERFACE -fsanitize=${TELLTALE_SANITIZE})
endif()
if(TELLTALE_FUZZ)
  # The tests' compiler judges the code; this one's other warnings are no reason not to fuzz.
  target_compile_options(telltale_options INTERFACE -Wno-error)
endif()
target_include_directories(telltale_options INTERFACE ${CMAKE_SOURCE_DIR}/src
                                                      ${CMAKE_SOURCE_DIR}/include
                                                      ${CMAKE_BINARY_DIR}/gen)

# telltale_library(NAME SOURCES ... DEPS ...): static library telltale_NAME.
function(telltale_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(telltale_${name} STATIC ${ARG_SOURCES})
  target_link_libraries(telltale_${name} PUBLIC telltale_options ${ARG_DEPS})
endfunction()

# Of a test, or of a file of tests in Python: ends one that hangs. Those awaited inside are shorter.
set(TELLTALE_TEST_SECONDS 3600)

# telltale_test(NAME SOURCES ... DEPS ... [ALONE FILTER]): a GoogleTest program in ctest; unit tests lie
# beside their source as x_test.cc. What the filter names runs with nothing beside it.
function(telltale_test name)
  cmake_parse_arguments(ARG "" "ALONE" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE telltale_options ${ARG_DEPS} GTest::gtest
                                        GTest::gtest_main Threads::Threads
                                        telltale_test_leftovers)
  # Compiled once and run once: the third of the compiler's time that -O2 costs is not won back.
  target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  set(others)
  if(ARG_ALONE)
    gtest_discover_tests(${name} TEST_FILTER ${ARG_ALONE} TEST_LIST ${name}_alone
                         PROPERTIES TIMEOUT ${TELLTALE_TEST_SECONDS} RUN_SERIAL TRUE DISCOVERY_TIMEOUT 120)
    set(others TEST_FILTER -${ARG_ALONE})
  endif()
  gtest_discover_tests(${name} ${others} PROPERTIES TIMEOUT ${TELLTALE_TEST_SECONDS} DISCOVERY_TIMEOUT 120)
endfunction()

# What runs in the user's process finds the caches cold, a framework's step has just been through them:
# laid out as one by the link-time optimizer it costs a small network's step a sixth less.
function(telltale_lean target)
  if(NOT TELLTALE_SANITIZE)
    target_compile_options(${target} PRIVATE
      $<$<AND:$<CXX_COMPILER_ID:GNU>,$<NOT:$<CONFIG:Debug>>>:-flto=auto -ffat-lto-objects>)
  endif()
endfunction()

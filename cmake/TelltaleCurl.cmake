# libcurl with GnuTLS, as the target telltale::curl (docs/decisions/0007-libcurl-with-gnutls.md): the
# pyarrow wheel's libparquet exports an OpenSSL of its own, and a libcurl with OpenSSL in the same
# process calls into that one and crashes in its first request.
include_guard(GLOBAL)
find_path(TELLTALE_CURL_INCLUDE curl/curl.h REQUIRED)
find_library(TELLTALE_CURL_LIBRARY curl-gnutls)
if(NOT TELLTALE_CURL_LIBRARY)
  message(FATAL_ERROR "libcurl-gnutls is missing: tools/setup installs it (libcurl4-gnutls-dev; it "
                      "takes the place of libcurl4-openssl-dev)")
endif()
add_library(telltale_curl INTERFACE)
target_include_directories(telltale_curl SYSTEM INTERFACE ${TELLTALE_CURL_INCLUDE})
target_link_libraries(telltale_curl INTERFACE ${TELLTALE_CURL_LIBRARY})
add_library(telltale::curl ALIAS telltale_curl)

// Asks a version's own option parser, linked in from its published sources, what it makes of command lines.
//
// Reads one command line a line, its arguments parted by the unit separator (0x1f), without the program's name. Answers
// each with "refused", the reason and a line that says "end", or with "parsed", the parser's own words on every option,
// and "end".

#include "sampleOptions.h"

#include <cuda_runtime_api.h>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

// The parser asks which GPU it is on from 10.10 on: here an H100.
extern "C"
{
cudaError_t CUDARTAPI cudaGetDevice(int* device)
{
    *device = 0;
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int)
{
    *value = attribute == cudaDevAttrComputeCapabilityMajor ? 9 : 0;
    return cudaSuccess;
}
}

namespace
{

std::vector<std::string> partsOf(std::string const& line)
{
    std::vector<std::string> parts{"trtexec"};
    std::istringstream rest{line};
    for (std::string part; std::getline(rest, part, '\x1f');)
    {
        parts.push_back(part);
    }
    return parts;
}

// What the tool's main does with its arguments before anything is built.
std::string answerTo(std::vector<std::string> parts)
{
    std::vector<char*> argv;
    for (auto& part : parts)
    {
        argv.push_back(part.data());
    }
    argv.push_back(nullptr);
    try
    {
        auto args = sample::argsToArgumentsMap(static_cast<int32_t>(parts.size()), argv.data());
        sample::AllOptions options;
        options.parse(args);
        if (!args.empty())
        {
            return "refused\nunknown option: " + args.begin()->first + "\n";
        }
        if (options.helps)
        {
            return "refused\nasks for help\n";
        }
        std::ostringstream words;
        words << options;
        return "parsed\n" + words.str();
    }
    catch (std::exception const& error)
    {
        return std::string{"refused\n"} + error.what() + "\n";
    }
}

} // namespace

int main()
{
    // The parser's own warnings go to standard output, among the answers.
    std::ostream answers{std::cout.rdbuf()};
    std::cout.rdbuf(std::cerr.rdbuf());
    for (std::string line; std::getline(std::cin, line);)
    {
        answers << answerTo(partsOf(line)) << "end" << std::endl;
    }
    return 0;
}

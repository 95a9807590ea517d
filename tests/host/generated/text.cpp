#include "generated/program.hpp"

namespace generated {
namespace {

using Op = Expression::Op;
using Kind = Statement::Kind;

std::string name_of(std::uint32_t variable) { return "x" + std::to_string(variable); }

std::string text_of(const Expression& e) {
  const auto operand = [&](std::size_t i) { return text_of(e.operands[i]); };
  const auto infix = [&](const char* sign) { return "(" + operand(0) + sign + operand(1) + ")"; };
  switch (e.op) {
    case Op::constant:
      return std::to_string(e.value) + "u";
    case Op::variable:
      return name_of(e.value);
    case Op::thread:
      return "t";
    case Op::block:
      return "blockIdx.x";
    case Op::argument:
      return "n";
    case Op::element:
      return "a[" + name_of(e.value) + "]";
    case Op::input:
      return "a[" + operand(0) + " & " + std::to_string(kInputs - 1) + "]";
    case Op::cell:
      return "p[" + operand(0) + " % " + std::to_string(kCells) + "]";
    case Op::add:
      return infix(" + ");
    case Op::subtract:
      return infix(" - ");
    case Op::multiply:
      return infix(" * ");
    case Op::exclusive_or:
      return infix(" ^ ");
    case Op::conjunction:
      return infix(" & ");
    case Op::disjunction:
      return infix(" | ");
    case Op::left:
      return "(" + operand(0) + " << (" + operand(1) + " & 31))";
    case Op::right:
      return "(" + operand(0) + " >> (" + operand(1) + " & 31))";
    case Op::less:
      return "unsigned" + infix(" < ");
    case Op::equal:
      return "unsigned" + infix(" == ");
    case Op::choose:
      return "(" + operand(0) + " ? " + operand(1) + " : " + operand(2) + ")";
  }
  return {};
}

void write(std::string& out, const std::vector<Statement>& statements, const std::string& indent);

void write(std::string& out, const Statement& s, const std::string& indent) {
  const std::string x = name_of(s.variable), inner = indent + "  ";
  const auto e = [&](std::size_t i) { return text_of(s.e[i]); };
  const auto line = [&](const std::string& text) { out += indent + text + "\n"; };
  const auto block = [&](const std::vector<Statement>& body) { write(out, body, inner); };
  switch (s.kind) {
    case Kind::assign:
      return line(x + " = " + e(0) + ";");
    case Kind::assign_cell:
      return line("p[" + e(0) + " % " + std::to_string(kCells) + "] = " + e(1) + ";");
    case Kind::branch:
      line("if (" + e(0) + ") {");
      block(s.body);
      if (!s.other.empty()) {
        line("} else {");
        block(s.other);
      }
      return line("}");
    case Kind::counted:
      line("for (" + x + " = 0; " + x + " < " + e(0) + "; ++" + x + ") {");
      block(s.body);
      return line("}");
    case Kind::stride:
      line("for (" + x + " = t + " + e(0) + "; " + x + " < " + e(1) + "; " + x +
           " += blockDim.x) {");
      block(s.body);
      return line("}");
    case Kind::scan:
      return line("while (a[(" + e(0) + " + " + x + ") & " + std::to_string(kInputs - 1) + "]) ++" +
                  x + ";");
    case Kind::repeat:
      line(x + " = 0;");
      line("do {");
      block(s.body);
      return line("} while (++" + x + " < " + e(0) + ");");
    case Kind::leave_loop:
      return line("if (" + e(0) + ") break;");
    case Kind::next_round:
      return line("if (" + e(0) + ") continue;");
    case Kind::barrier:
      return line("__syncthreads();");
    case Kind::count:
      return line(x + " = __syncthreads_count(" + e(0) + ");");
    case Kind::until_none:
      line("while (__syncthreads_or(" + x + " < " + e(0) + ")) {");
      out += inner + "++" + x + ";\n";
      block(s.body);
      return line("}");
    case Kind::publish:
      return line("s[t] = " + e(0) + ";");
    case Kind::collect:
      return line(x + " = s[(t + " + e(0) + ") % blockDim.x];");
    case Kind::meet_in_rounds: {
      const std::string met = name_of(s.variable + 1);
      line(met + " = 0;");
      line("for (" + x + " = 0; " + met + " < " + e(1) + "; ++" + x + ") {");
      block(s.body);
      out += inner + "if (a[(" + e(0) + " + " + x + ") & " + std::to_string(kInputs - 1) +
             "]) continue;\n" + inner + "__syncthreads();\n" + inner + "++" + met + ";\n";
      block(s.other);
      return line("}");
    }
    case Kind::shuffle:
      return line(x + " = __shfl_xor_sync(~0u, " + e(0) + ", " + std::to_string(s.value) + ");");
    case Kind::exit:
      return line("if (" + e(0) + ") { out[" + std::to_string(s.variable) + "] = " + x +
                  "; return; }");
  }
}

void write(std::string& out, const std::vector<Statement>& statements, const std::string& indent) {
  for (const Statement& statement : statements) write(out, statement, indent);
}

}  // namespace

std::string text_of(const Program& program) {
  std::string out =
      "__global__ void k(unsigned* out, const unsigned* a, unsigned n) {\n"
      "  extern __shared__ unsigned s[];\n"
      "  const unsigned t = threadIdx.x;\n"
      "  out += (blockIdx.x * blockDim.x + t) * " +
      std::to_string(kOutputs) + ";\n  unsigned p[" + std::to_string(kCells) + "] = {};\n";
  for (std::uint32_t v = 0; v < program.variables; ++v)
    out += "  unsigned " + name_of(v) + " = 0;\n";
  out += "  s[t] = 0;\n  __syncthreads();\n";
  write(out, program.statements, "  ");
  for (std::uint32_t v = 0; v < kOutputs; ++v)
    out += "  out[" + std::to_string(v) + "] = " + name_of(v) + ";\n";
  return out + "}\n";
}

}  // namespace generated

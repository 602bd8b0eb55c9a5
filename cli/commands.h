/*
 * The commands of the program, one row each: the function cmd_<name> in
 * cli/cmd_<name>.c and the line that `memscale --help` shows. The order is the
 * order of the help.
 * Tests: tests/cli/main.golden.
 */
#ifndef MS_CLI_COMMANDS_H
#define MS_CLI_COMMANDS_H

#define CLI_COMMANDS(X) \
    X(demo, "train a small model under a budget, in a minute (needs torch)") \
    X(hardware, "show this machine as plans see it") \
    X(plan, "make and explain the plan for a graph") \
    X(policy, "what auto_policy would choose for a graph, and why") \
    X(predict, "the memory that a Hugging Face model needs, without torch") \
    X(doctor, "check what memscale needs or can use here") \
    X(dashboard, "show runs from their logs (needs memscale-server)") \
    X(push, "send runs from their logs to a memscale-server")

/* argv[0] is the command's name. Returns the exit status of the program. */
#define CLI_DECLARE(name, text) int cmd_##name(int argc, char **argv);
CLI_COMMANDS(CLI_DECLARE)
#undef CLI_DECLARE

#endif

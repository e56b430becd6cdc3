/*
 * `host-bridge token`: add, list, limit and revoke what the token file holds, without a bridge
 * that runs. Called by main.c; the file's changes are tokens_edit.h's.
 */
#ifndef SANDGATE_TOKEN_COMMAND_H
#define SANDGATE_TOKEN_COMMAND_H

/* argv[0] is "token". The exit status: 0, 1 when it could not be done, 2 for a wrong use. */
int token_command_main(int argc, char **argv);

#endif

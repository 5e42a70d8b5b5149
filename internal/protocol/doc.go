// Package protocol holds no code of the program, only a test: an exhaustive exploration of what a client, the processes
// of paymentd, PostgreSQL and Toss can do to one order, in every sequence within a bound (docs/testing.md, "The protocol
// check"; ADR 0010). The processes are the real use cases of internal/approval with the real rules of internal/payment;
// the database and the gateway are models of their promises, small enough to be copied at every step.
package protocol

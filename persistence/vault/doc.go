// Package vault seals what the database must not show: credentials, and what
// models and tools were given. It is the only package that opens it again.
//
// Each value is encrypted with AES-256-GCM under a data key of its own, which is
// wrapped by the master key and kept beside it. Both encryptions are bound to the
// place of the value (AAD): a ciphertext that was moved to another tenant, table,
// row or column does not open. Rotation of the master key rewraps data keys and
// leaves values as they are; previous master keys still open, only the current
// one seals. Nonces are random, so a master key serves for 2^32 seals.
//
// Keys to sign with are derived from the master key, one for each purpose; they are not
// stored, and change with it.
//
// It holds keys in memory and does no I/O but LoadOrCreate. Loss: without its
// master key a value is gone.
package vault

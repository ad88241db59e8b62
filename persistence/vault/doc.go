// Package vault seals values that must not be readable in the database: credentials, and the
// inputs of models and tools. No other package opens them.
//
// Each value is encrypted with AES-256-GCM under a data key of its own, which is wrapped by
// the master key and stored beside it. Both encryptions are bound to the place of the value
// (AAD): a ciphertext moved to another tenant, table, row or column does not open. Rotation
// of the master key rewraps data keys and leaves values as they are; previous master keys
// still open, only the current one seals. Nonces are random, so a master key serves for 2^32
// seals.
//
// Signing keys are derived from the master key, one per purpose; they are not stored, and
// change with it.
//
// The package holds keys in memory and does no I/O except in LoadOrCreate. Loss: without its
// master key a value is lost.
package vault

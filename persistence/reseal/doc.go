// Package reseal moves sealed values to the current master key, so that a previous key can
// be removed.
//
// It goes through the given columns, over all tenants, in pages by primary key. Each kind
// lists the columns of its tables (durable.Traits), package store those of the tables
// without a kind. It first opens a value completely, because rewrapping alone would not
// detect damage. Then it wraps the data key of the value again (vault.Rewrap) and swaps the
// new bytes for the old ones. The swaps of a page are one short transaction. A row that is
// locked, or was written since, is left to the next pass. Passes go on until one finds no
// value under a previous key: this proves that no previous key is needed.
//
// Unlock, Check and Sample report whether the keys of a process open this database, by the
// canary (a value that is sealed for this purpose) and by the first value of each column. Each key that has begun to
// seal has a layer of the canary (Begin), until a complete run leaves one.
//
// Its only state is its position, in memory: if it is killed all values stay whole, and the
// next run continues with the values that are left. Limits: a page has at most pageRows rows
// and about pageBytes. Loss: none; a value that does not open is reported and stays as it
// is. A server that still seals under a previous key makes new work all the time: give all
// servers the new key first.
package reseal

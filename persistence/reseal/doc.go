// Package reseal moves sealed values under the current master key, so that a
// previous one can be taken out of service.
//
// It walks the columns that it is given, over all tenants, in pages by primary key.
// Each kind lists the columns of its tables (durable.Traits), package store those of
// the tables without a kind. A value is opened first, as a check of all of it: rewrapping alone
// would carry damage on unseen. Then its data key is wrapped anew (vault.Rewrap)
// and the bytes are swapped for the old ones. The swaps of a page are one short
// transaction; a row that somebody holds or has written since is left to the next
// pass. Passes go on until one finds nothing to do, which is what proves that no
// previous key is needed.
//
// Unlock, Check and Sample answer whether the keys of a process open this
// database, by the canary (a value that is sealed for this purpose) and by the
// first value of each column.
//
// It keeps nothing but its place in memory: killed at any point it leaves whole
// values, and run again it does what is left. Limits: a page is at most pageRows
// rows and about pageBytes. Loss: none; what does not open is reported and stays
// as it is. A server that still seals under a previous key makes new work for
// ever: give all of them the new key first.
package reseal

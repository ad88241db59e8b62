// Package sync syncs the sources of knowledge bases. Each source has an actor, which is in memory
// only while it syncs or handles a due time.
//
// I am the row knowledge_sources/<id>; my address is sync/<tenant>/<source id>. The API queues a
// sync in my row and wakes me; so does the sweep, if that message is lost. The sweep also tells me
// that my timer is due.
//
//	          API or timer        a place on this node        the walk ended
//	idle, ok, ----------> queued -------------------> syncing ------------> ok, failed
//	failed                  ^                            |
//	                        +--- configuration changed --+--- disabled ---> as before the sync
//
// A sync is one effect: a walk over the source's listing, page by page. Each step is a transaction
// of its own (store.Syncs) with the documents of the step and the position behind it. It begins by
// locking my row, and writes nothing unless the row is syncing with the epoch and the number of the
// sync that the walk began with. So of two activations one writes; another configuration, which
// counts the number up, a disabling and a deletion end the walk with its next step; a due time
// does not; and a walk that was killed continues behind its last step. Other credentials
// count when the API wakes me, or when the commit that ends a sync misses. That commit swaps my row by
// its version, and holds the event for webhooks.
//
// Contents that changed are put into the store of files before the step that names them, as with
// all files. A document whose content is new owes an index; its actor (ingest) is woken, and the
// sweep finds it if that is lost.
//
// Deletion: a document is deleted if the source says so, or if a walk that listed everything has
// not met it. A walk that fails, or that met a page it could not read, deletes nothing. A page that
// refuses access leads to others as well: where it had a document, that one is failed, and the walk
// deletes nothing. Documents carry the number of the last sync that met them.
//
// A file that cannot be read does not end the walk. If that is for good (too large, no right) the
// document is failed and says why. A file that gave no right, and one whose content could not be
// indexed for a reason that is not the file's (actors/ingest), is tried again by each sync, at most
// 500 of them where the listing names changes only. If it may pass, the document stays as it was and
// the next sync tries again: the walk then does not move the position of changes (delta). Neither does
// it if a file was gone when it was fetched: the next listing of changes says so, or names it again.
//
// Owner of: status, sync, resume, delta, listed, last_synced_at, last_error, next_sync_at of a
// source, its timer, and item, item_version, seen of its documents. The API writes the same row,
// and counts the version up.
//
// Limits: a node performs four syncs at a time, one for each tenant, in turn; a sync that
// others wait for gives up its place after a minute and takes the next free one. A walk without
// progress ends within 140 s, however many requests a page of its listing takes. A walk that could not
// store what it fetched asks again after pauses that double up to five minutes, without a place. One that the
// vendor asks to wait for up to ten minutes pauses as long, without a place, and goes on behind its last step;
// after three such pauses without a step that brings it on, and if it is asked to wait longer, it fails. A step
// holds at most 16 fetched contents, in the store of files.
//
// Loss: none. Due times that passed while no node was up, or while a sync was on its way, lead to
// one sync at most.
package sync

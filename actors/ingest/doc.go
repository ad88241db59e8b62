// Package ingest indexes the documents of knowledge bases. Each document has an actor, which is in
// memory only while it indexes the document or removes what is left of it.
//
// I am the row kb_documents/<id>; my address is ingest/<tenant>/<document id>. The API and the syncs
// of sources change my row (a new content, other settings of the base, a deletion), set owes and
// wake me; so does the sweep, if that message is lost. The sweep also tells me that my timer is due.
//
//	                                    +-- not now: a timer, and later again ---+
//	                                    v                                        |
//	new content, other settings ---> queued ---> processing: a generation is written
//	                                    ^ a place        |           |
//	                                    |             shown        the file cannot be read
//	                                    |                v           v
//	                                    |              ready      failed ---> what is left is removed
//	                                    +-- content ----+-----------+         (owes ends)
//
// A generation is the chunks of one reading of the document. It is written beside the one that
// searches see, in transactions that read my row first and stop when another generation was begun,
// when the content changed or when the document was deleted. The commit that ends it shows it, and searches
// see all of it from then on. So a document is found by its old text until its new one is whole, and
// a crash at any moment leaves chunks that nothing shows and that are removed later, at the latest by the next generation before it is
// written. Only generations up to that of the row are removed: what a later activation writes or shows has a later one.
//
// Where the base has a model of embeddings, each batch of chunks gets its vectors before it is
// written, and the row says with the generation which model made them. An attempt takes the vectors that the one before made of the
// same texts, as long as content and settings are the same (attempts begins at 0 with others). A provider that is down
// postpones the document without end, and so does a store of files that is away; a provider that refuses fails it, and what
// is shown stays. What the
// vectors cost is a usage record in the commit that ends the generation or postpones it; a generation
// that another change of the row or a crash has overtaken is not billed.
//
// A document waits in memory for one of the node's places, and is queued until it has one: what waits over the
// ends of many processes has not been begun. An activation that finds a generation that another one began begins
// a new one: the progress of the other is not stored. A document whose reading a process did not survive five times is failed. A node that
// stops, or whose shard moves, ends a reading itself and takes the attempt back, except the first one of a content: the next attempt takes
// its vectors.
//
// A failure is permanent if the file is the reason. If it is not (no vectors, five attempts in vain) the content counts as not
// read (read_content < 0): the next sync of the document's source fetches it again, and an upload can be uploaded again.
//
// Owner of: status, error, attempts, generation, shown and what was shown, chunks and owes of a
// document, and its timer. The API writes the same row, and counts the version up.
//
// Limits: a node reads Config.Most documents of one tenant at a time, and one more of others, tenants in
// turn: files that take the most time that a file may take hold up no other tenant. Documents that get
// vectors have eight places beside these, two of one tenant: they are read to their end first, into a file
// without a name, and one that has had its place for a minute gives it to another tenant that waits, and waits in turn: at most 24 do so at
// a time, because each keeps its file. 300 documents of a tenant wait in memory, 5,000 of all; the sweep wakes others later. What is
// left of four documents is removed at a time. A file is read in a process of its own (transport/parser), and its chunks are written eight
// at a time, with rests that are three times as long as the writing.
//
// Loss: none. A message that is lost is found by the sweep.
package ingest

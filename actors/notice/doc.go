// Package notice tells open consoles what has changed (console.md, GET /v1/feed). It is no
// durable kind: it has no rows, and everything here may be lost with its process.
//
// A Board is one node's. After a commit the writers call Note with the objects that it changed.
// Note costs a look-up while no reader of that tenant is connected anywhere. Otherwise the
// names of the objects go to the boards with readers of the tenant:
//
//	node of the commit                                node with readers of the tenant
//	                  ◄── Watch {tenants}, each 2 s ── peer
//	Note ─► outbox    ─── Hints {tenant, names} ─────► desk: names of 250 ms
//	        50 ms, 50 names a topic, then "lost"         │ one read of the rows, as they are now
//	                                                     └─► frames, for each view ─► sockets
//
// A desk sends no object twice within 250 ms. Readers with the same topics and the same rights
// share a view: their frames are made once. A view gets at most 50 changes in a second; when
// more have changed it gets feed.lost with the topics that its readers have to read again, at
// most twice a second.
//
// Completeness: a reader gets feed.ready when every other node has acknowledged that it
// watches the tenant. If a node does not acknowledge in time, joins, leaves, or stops to
// answer, readers get feed.lost: at once, when the node answers again, and every 5 s in
// between. Hints are sent again until they are acknowledged. Redis is not involved.
//
// Rights: approvals are shown as the list of approvals shows them, by the row that is read;
// resources by their kind, and a kind that is not known here is for admins. An approval that
// escalated is feed.lost for the readers that may not decide it: their lists may show it. The
// streams of a user whose role changes end with the revocation. Which org nodes a member
// manages is read after Open, when the desk hears of all changes. A member is cut when these
// may have changed since it was read: after a change, and when another node answers again or
// has left. Its client connects again.
//
// Limits: maxNames for each topic of a desk and of an outbox; one read at a time; one call to
// each node at a time. Loss: names are lost with the process that committed; the other nodes
// notice its end.
//
// Locks: Board.mu guards everything. It is never held during a read, a call or a close.
package notice

// Package session makes and reads the two values by which a browser is known to the
// embed API (service.md, Embed; open-parts.md, Embed). Nothing is stored of either: they carry what they
// say, signed by HMAC-SHA256 under keys that are derived from the master keys, another
// one for each of the two.
//
// A session token, svc_es_…, says under which embed key, from which origin and as whom a
// browser speaks, and until when. It is looked at on every call. That the key and the end user are
// still there, and that the call comes from that origin, its reader has to check.
//
// A visitor value, svc_vi_…, says that a browser is a certain visitor of one embed key. It
// does not expire: who sends it back stays the same visitor.
//
// Both are two parts of unpadded base64url behind their prefix, a payload that begins with
// its version and a MAC, joined by a dot. The MAC is of the text before the dot, prefix
// included, and, in a visitor value, of the tenant and the embed key, which are not in the text. So
// exactly one text is accepted for each value. What was signed under a previous master
// key is accepted as well; without it every session and every visitor begins anew.
package session

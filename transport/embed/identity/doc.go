// Package identity checks the tokens by which a tenant's back end identifies a visitor
// (service.md, Authentication, Embed; security.md, Embed): JWTs, signed with HS256 and the
// identity secret of the embed key. It is the only package that imports jwx.
//
// A token is checked in this order, and the first failure gives the reason:
//
//	malformed      over 8 KiB; not three parts joined by dots; a part that is no strict
//	               base64url without padding; no payload; a header that is no JSON object,
//	               holds a member twice, says another typ than JWT, or names a key or an
//	               extension (jku, jwk, x5u, x5c, x5t, crit, b64, zip, enc)
//	alg            the header's alg is not exactly HS256, or is missing
//	signature      not signed with the secret; no secret
//	malformed      a payload that is no JSON
//	claims         a payload that is no object, or holds a member twice, at any depth;
//	               exp missing or no number
//	expired        exp is now or before (RFC 7519, 4.1.4: "on or after")
//	claims         any other claim that is not as below
//	exp_too_far    exp more than 24 h ahead
//	iat_in_future  iat more than 5 min ahead
//	not_yet_valid  nbf more than 60 s ahead
//
// Limits are inclusive: exactly 24 h, 5 min and 60 s ahead pass. No part of the payload is
// read before its signature is verified, and the header chooses neither the key nor how to
// verify.
//
// The claims; others are ignored:
//
//	sub    required, a string of 1 to 255 characters
//	exp    required, a number
//	name   a string of up to 120 characters, or null, which says nothing
//	email  a string of up to 320 characters, or null, which says nothing
//	meta   an object with up to 16 members; an array meta.groups holds strings of 1 to 255
//	       characters. Only the token's 8 KiB bound how large it is
//	iat    a number
//	nbf    a number
//
// Characters are Unicode code points; sub, name, email and groups hold no control characters.
// Times are seconds since 1970, not negative, and may have fractions (RFC 7519, 2,
// NumericDate). Names match case-sensitively.
//
// The package keeps no state and has no clock of its own.
package identity

// Runs in the driver before its own code. It cuts the texts of a message that the service could not hold: pages choose the length of
// what they say, of their errors and of what their sockets carry, and the service reads each message whole.
const most = 16 << 20, longest = 1 << 20; // bytes of a message, characters of a text in a larger one
if (process.argv.includes('run-driver')) { // not where it tells its version
  const write = process.stdout.write.bind(process.stdout);
  let length = null; // of the message that comes next
  process.stdout.write = (chunk, ...rest) => {
    if (length === null) { // each message is written as its length, and then as itself
      length = chunk;
      return true;
    }
    if (chunk.length > most) {
      const cut = (_, v) => typeof v === 'string' && v.length > longest ? v.slice(0, longest) : v;
      chunk = Buffer.from(JSON.stringify(JSON.parse(chunk.toString('utf-8')), cut), 'utf-8');
      if (chunk.length > most) process.exit(1);
      length.writeUInt32LE(chunk.length, 0);
    }
    write(length);
    length = null;
    return write(chunk, ...rest);
  };
}

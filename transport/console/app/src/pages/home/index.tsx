import { Heading } from "../../frame/heading";
export default function Home() { return <Heading text="Home" />; }

// Samples name the server by the address under which the reader sees this page.
const placeholder = "http://localhost:8000/v1";
for (const code of document.querySelectorAll(".sample code, .base-url")) {
  code.textContent = code.textContent.replaceAll(placeholder, location.origin + "/v1");
}
for (const sample of document.querySelectorAll(".sample")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    const code = sample.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      // Without https a browser lets no page write there: the text is marked instead.
      getSelection().selectAllChildren(code);
      button.textContent = "Marked";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  sample.querySelector("header").append(button);
}

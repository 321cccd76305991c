// A flag is searched as it is written: lunr would leave out the pages with a word behind a dash.
const asWords = (message) =>
  typeof message.data === "string" ? { ...message, data: message.data.replace(/(^|\s)-+/g, "$1") } : message;

// A browser refuses a Worker to a page from a disk. Search then runs in an iframe with a Worker's interface.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const run = (src) =>
        new Promise((done) => {
          const script = inner.document.createElement("script");
          Object.assign(script, { src, onload: done });
          inner.document.body.append(script);
        });
      inner.importScripts = (...all) => all.reduce((before, src) => before.then(() => run(src)), Promise.resolve());
      run(url).then(() => {
        const waiting = this.waiting;
        this.waiting = null;
        waiting.forEach((data) => this.postMessage(data));
      });
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data: asWords(data) }));
    }
  };
} else {
  const post = Worker.prototype.postMessage;
  Worker.prototype.postMessage = function (message) {
    return post.call(this, asWords(message));
  };
}
